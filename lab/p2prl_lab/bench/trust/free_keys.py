"""Keys that cost nothing, each with a libp2p daemon of its own, which flood one node over real sockets.

    python -m p2prl_lab.bench.trust.free_keys JSON

The argument is an object with `target` (the node's address), `run`, `keys`, `addresses` (the loopback addresses that
the keys share), and `flood`: `questions` with `names` and `root`, or `statements`. It prints one JSON line when all
keys are linked, floods from the line `begin` on its input to the line `end`, and prints what it has sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from p2prl.clock import SystemClock
from p2prl.errors import TransportError
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol import frames, wire_version
from p2prl.protocol.delegation import DAY_MS, sign_delegation
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import BlobQuery, Hello, LedgerQuery, Padding, Push, Want

PADDING_BYTES = 4 * 1024
"""Sent with each question: 16 keys send more than twice what an uplink of 5 Mbit/s carries."""

ASK_S = 0.1
"""How often each key asks for one thing after the other."""

STATE_S = 0.25
"""How often each key makes a statement: 64 of them fill the quota of a window in 16 s, and go on."""

_HELLO_S = 5.0
_SEND_S = 10.0
_STARTED_AT_ONCE = 8
_YIELDS = 15
"""By which the keys are nicer than the node: elsewhere they have processors of their own, here they would take its."""

_MOST_AT_ONCE = 16
"""Turns in one frame."""

Flood = Callable[[int], bytes]
"""The messages of a turn."""


def hello(run: bytes, now: float) -> Hello:
    """What a key says of itself."""
    return Hello(wire_version.WIRE_VERSION, run, int(Role.SEEDER), int(now * 1000), -1, 0)


def question(run: bytes, names: Sequence[Digest], root: Digest, turn: int, now: float) -> bytes:
    """The messages of a turn: all that a node answers with much, one after the other, and padding that pays for it."""
    asked = (hello(run, now), Want(tuple(names)), LedgerQuery(turn), BlobQuery(root))
    return frames.pack(Padding(bytes(PADDING_BYTES))) + frames.pack(asked[turn % len(asked)])


def statement(run: bytes, rng: random.Random, now: float) -> bytes:
    """A message with the delegation of a fresh machine by a fresh owner."""
    owner, machine = Identity(rng.randbytes(16)), Identity(rng.randbytes(16))
    now_ms = int(now * 1000)
    body = sign_delegation(owner, machine.public_key, serial=now_ms, expires_ms=now_ms + DAY_MS)
    return frames.pack(Push(seal(machine, body, run=run, now=now)))


class _FreeKey:
    """One key, and its link."""

    def __init__(self, target: str, address: str, run: bytes, flood: Flood, period_s: float) -> None:
        self._target, self._address, self._run = target, address, run
        self._flood, self._period_s = flood, period_s
        self._clock = SystemClock()
        self.sent: Counter[str] = Counter()
        self.is_flooding = False

    async def link(self) -> None:
        """Start the daemon and link with the node."""
        self._transport = await HivemindTransport.start(
            Identity(os.urandom(16)),
            listen=(f"/ip4/{self._address}/tcp/0",),
            daemon_config=DaemonConfig(nat_port_map=False, auto_nat=False),
        )
        self._transport.set_receiver(self._take)
        self._peer = await self._transport.connect(self._target)
        await self._greet()

    async def live(self) -> None:
        """Stay linked, and flood while told to. What a busy machine holds up is made up for in the next frame."""
        turn, due, last = 0, 0.0, self._clock.now()
        greeted = last
        while True:
            await asyncio.sleep(self._period_s)
            now = self._clock.now()
            due, last = min(due + (now - last) / self._period_s, _MOST_AT_ONCE) * self.is_flooding, now
            with contextlib.suppress(TransportError, TimeoutError):
                if now - greeted > _HELLO_S:
                    greeted = now
                    await self._greet()
                if turns := range(turn, turn + int(due)):
                    turn, due = turns.stop, due - len(turns)
                    frame = b"".join(map(self._flood, turns))
                    await self._transport.send(self._peer, frame, timeout_s=_SEND_S)
                    self.sent += Counter(turns=len(turns), bytes=len(frame))

    async def close(self) -> None:
        """End the daemon."""
        await self._transport.close()

    async def _greet(self) -> None:
        frame = frames.pack(hello(self._run, self._clock.now()))
        await self._transport.send(self._peer, frame, timeout_s=_SEND_S)

    def _take(self, peer: PeerId, frame: bytes) -> None:
        self.sent += Counter(answered_bytes=len(frame) * (peer == self._peer))


async def _main(given: dict[str, Any]) -> None:
    os.nice(_YIELDS)
    run, clock = bytes.fromhex(given["run"]), SystemClock()
    rng = random.Random(os.urandom(16))  # noqa: S311 - a flood of free keys
    if given["flood"] == "questions":
        names, root = [Digest(bytes.fromhex(name)) for name in given["names"]], Digest(bytes.fromhex(given["root"]))
        period_s = ASK_S

        def flood(turn: int) -> bytes:
            return question(run, names, root, turn, clock.now())
    else:
        period_s = STATE_S

        def flood(turn: int) -> bytes:
            del turn
            return statement(run, rng, clock.now())

    addresses = given["addresses"]
    keys = [
        _FreeKey(given["target"], addresses[number % len(addresses)], run, flood, period_s)
        for number in range(given["keys"])
    ]
    for first in range(0, len(keys), _STARTED_AT_ONCE):
        await asyncio.gather(*(key.link() for key in keys[first : first + _STARTED_AT_ONCE]))
    tasks = [asyncio.create_task(key.live()) for key in keys]
    _say(linked=len(keys))
    while line := (await asyncio.to_thread(sys.stdin.readline)).strip():
        for key in keys:
            key.is_flooding = line == "begin"
        _say(**sum((key.sent for key in keys), Counter()))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(key.close() for key in keys))


def _say(**figures: int) -> None:
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


@dataclass(slots=True)
class FreeKeys:
    """The process of the keys, as seen by the process that started it."""

    process: subprocess.Popen[str]

    def begin(self) -> None:
        """Let them flood."""
        self._tell("begin")

    def end(self) -> dict[str, int]:
        """Let them stop. Returns the turns and bytes that they have sent, and bytes that the node has sent them."""
        return self._tell("end")

    def _tell(self, line: str) -> dict[str, int]:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.heard()

    def heard(self) -> dict[str, int]:
        """Its next line."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the flooding keys have ended"
        figures: dict[str, int] = json.loads(line)
        return figures


@contextlib.contextmanager
def free_keys(target: str, run: bytes, *, keys: int, addresses: int, **flood: Any) -> Iterator[FreeKeys]:
    """Keys that are linked with the node at `target`, at this many loopback addresses. They end with the block."""
    given = {
        "target": target,
        "run": run.hex(),
        "keys": keys,
        "addresses": [f"127.2.{number}.1" for number in range(addresses)],
        **flood,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "p2prl_lab.bench.trust.free_keys", json.dumps(given)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    made = FreeKeys(process)
    try:
        assert made.heard() == {"linked": keys}
        yield made
    finally:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(_main(json.loads(sys.argv[1])))
