"""An index flooded with listings, and what readers of it and honest learners wait.

    python -m p2prl_lab.index_load          # exits with 1 above 100 ms, or when an honest run is not found within 10 s
    python -m p2prl_lab.index_load --spam 500 --seconds 5

10,000 listings of 100 keys come from 16 subnets. 40 honest learners list their runs: eight of them in those subnets
before the flood, since it fills what an index takes of a subnet, the others during it. The addresses are those that a
proxy names. Pages and the API are asked 50 times a second on a fixed schedule, whether or not earlier requests have
been answered, and each is timed from the moment it was due. A reader looks for the honest runs in the API's list. All
share the machine's cores with the index.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import statistics
import sys
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from urllib.parse import urlsplit

from p2prl.clock import SystemClock
from p2prl.index.index_app import index_app
from p2prl.index.index_state import IndexState
from p2prl.index.submission import OCTETS, submission
from p2prl.scoreboard.web.web_server import WebServer
from p2prl_lab.testing.listed_runs import ListedRun, many_runs, subnet_name

MOST_MS = 100.0
"""Largest 95th percentile, milliseconds."""

MOST_S = 10.0
"""Longest time from an honest learner's first listing to when a reader finds it."""

_HONEST = 40
_SHARING = 8
"""Honest learners in the subnets of the flood."""

_SUBNETS = 16
_OWNERS = 100
_TARGETS = ("/", "/api/v1/runs", "/?q=honest-7", "/healthz")


def serve(ready: Connection) -> None:
    """The index's process."""
    server = WebServer(host="127.0.0.1", port=0)
    server.run(index_app(IndexState(SystemClock()), is_public=True), on_ready=lambda _: ready.send(server.url))


@dataclass(slots=True)
class Load:
    """An index under load, and what was measured."""

    host: str
    port: int
    times: dict[str, list[float]] = field(default_factory=dict)
    """Milliseconds from when a request was due, by target."""
    answers: dict[int, int] = field(default_factory=dict)
    """Listings of the flood by HTTP status."""
    found_s: dict[str, float] = field(default_factory=dict)
    """Seconds from an honest run's first listing to its being read."""
    listed_at: dict[str, float] = field(default_factory=dict)

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """One request on its own connection: status and body."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(request)
        await writer.drain()
        head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        writer.close()
        return int(head.split(b" ", 2)[1]), body

    async def get(self, target: str) -> bytes:
        """The body of a page. Exits where it is refused."""
        request = f"GET {target} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n\r\n"
        status, body = await self.ask(request.encode())
        if status != 200:
            raise SystemExit(f"{target}: HTTP {status}")
        return body

    async def list_run(self, run: ListedRun, home: int) -> int:
        """Send a run's listing and manifest from an address of subnet `home`; returns the status."""
        body = submission(run.signed(now=time.time()), run.manifest_raw)
        head = (
            f"POST /api/v1/listings HTTP/1.1\r\nHost: {self.host}:{self.port}\r\nConnection: close\r\n"
            f"X-Forwarded-For: {address_in(home)}\r\nContent-Type: {OCTETS}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        status, _ = await self.ask(head.encode() + body)
        return status

    async def flood(self, spam: list[ListedRun], rng: random.Random, seconds: float) -> None:
        """Send all of it, spread over the time."""
        began = time.perf_counter()
        for number, run in enumerate(spam):
            await asyncio.sleep(max(0.0, began + number * seconds / len(spam) - time.perf_counter()))
            status = await self.list_run(run, rng.randrange(_SUBNETS))
            self.answers[status] = self.answers.get(status, 0) + 1

    async def list_honest(self, numbers: range, seconds: float) -> None:
        """First listings of these learners, one after the other over half of the time."""
        for number in numbers:
            run = ListedRun(f"honest-{number}", f"honest-{number}")
            self.listed_at[run.name] = time.perf_counter()
            status = await self.list_run(run, number if number < _SHARING else 100 + number)
            if status != 200:
                raise SystemExit(f"{run.name} was refused: HTTP {status}")
            await asyncio.sleep(seconds / 2 / len(numbers))

    async def look(self) -> None:
        """Read the list as a volunteer does, and note which honest runs are on it, until all are."""
        while len(self.found_s) < _HONEST:
            names = {row["name"] for row in json.loads(await self.get("/api/v1/runs"))["runs"]}
            now = time.perf_counter()
            for name, at in self.listed_at.items():
                if name in names and name not in self.found_s:
                    self.found_s[name] = now - at
            await asyncio.sleep(0.25)

    async def read(self, rate: float, seconds: float) -> None:
        """Ask on a fixed schedule."""
        waiting, began = [], time.perf_counter()

        async def one(target: str, due: float) -> None:
            await self.get(target)
            self.times.setdefault(target, []).append((time.perf_counter() - due) * 1000)

        for number in range(int(rate * seconds)):
            due = began + number / rate
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            waiting.append(asyncio.create_task(one(_TARGETS[number % len(_TARGETS)], due)))
        await asyncio.gather(*waiting)


def address_in(subnet: int) -> str:
    """An address in a /24 of its own for each number, and of a provider of its own."""
    return subnet_name(subnet).replace(".0/24", ".7")


async def measure(load: Load, spam: list[ListedRun], *, rate: float, seconds: float) -> None:
    """Flood, honest learners and readers side by side."""
    await load.get("/")  # what a first visitor makes the index read
    looking = asyncio.create_task(load.look())
    await load.list_honest(range(_SHARING), 1.0)
    await asyncio.gather(
        load.flood(spam, random.Random(0), seconds),  # noqa: S311 - a seeded flood
        load.list_honest(range(_SHARING, _HONEST), seconds),
        load.read(rate, seconds),
    )
    await asyncio.wait_for(looking, MOST_S)


def main() -> None:
    """Serve, flood, measure, and print; exits with a message when the index is too slow or hides an honest run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spam", type=int, default=10_000, help="listings of the flood")
    parser.add_argument("--rate", type=float, default=50.0, help="requests of readers a second")
    parser.add_argument("--seconds", type=float, default=120.0, help="time over which all of it comes")
    options = parser.parse_args()
    spam = many_runs(options.spam, owners=_OWNERS)
    for run in spam:
        _ = run.manifest_raw  # signed beforehand: the client's time is none of the index's
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    index = context.Process(target=serve, args=(there,), daemon=True)
    index.start()
    try:
        url = urlsplit(here.recv())
        load = Load(url.hostname or "", url.port or 80)
        asyncio.run(measure(load, spam, rate=options.rate, seconds=options.seconds))
    except TimeoutError:
        sys.exit(f"only {len(load.found_s)} of {_HONEST} honest runs are listed {MOST_S:g} s after the flood")
    finally:
        index.terminate()
        index.join()
    report(load)


def report(load: Load) -> None:
    """Print the tables, and exit with a message where a figure is too high."""
    answered = ", ".join(f"{count:,} × HTTP {status}" for status, count in sorted(load.answers.items()))
    print(f"the flood: {answered}")
    print(f"{'request':<22}{'number':>8}{'median':>10}{'p95':>10}{'worst':>10}   ms")
    for target, values in [*load.times.items(), ("all", [each for row in load.times.values() for each in row])]:
        p95 = statistics.quantiles(values, n=20)[-1]
        print(f"{target:<22}{len(values):>8}{statistics.median(values):>10.1f}{p95:>10.1f}{max(values):>10.1f}")
    longest = max(load.found_s.values())
    print(f"{len(load.found_s)} honest runs were found, the last {longest:.2f} s after its first listing")
    if longest > MOST_S:
        sys.exit(f"an honest run was found after more than {MOST_S:g} s")
    if p95 > MOST_MS:
        sys.exit(f"the 95th percentile is above {MOST_MS:g} ms")


if __name__ == "__main__":
    main()
