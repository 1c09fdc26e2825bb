"""The lab without a swarm: do two homes meet when both dial at once? With the product's own dials, and no daemon.

Each home first asks a public host what its address looks like from outside, from the port it will dial with (STUN's
question). Then both dial what the other was told, at the same time, from that same port
(`p2prl.net.transports.simultaneous_open`). It takes seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import socket
from itertools import combinations
from typing import Any

from p2prl.errors import TransportError
from p2prl.net.transports.simultaneous_open import open_simultaneously
from p2prl_lab.home_networks.internet import Internet
from p2prl_lab.home_networks.namespaces import Machine, machines_of
from p2prl_lab.home_networks.router import running_router
from p2prl_lab.home_networks.sites import LineSpeed, make_site

KINDS = ("preserving", "restricted", "symmetric", "carrier", "rejecting")
NEIGHBORS = (("carrier", "neighbor"), ("hairpin", "neighbor"))
"""Two homes behind one carrier's NAT: one that drops what its homes send to its own address, and one that turns it
back."""

_HOST, _PORT, _HOME_PORT = "44.130.7.1", 4001, 5000
_ASK_S, _MEET_S = 10.0, 5.0
_HELLO = b"hello"


def meeting_report(seed: int) -> dict[str, Any]:
    """Rows `kind_a`, `kind_b`, `direct` of every two kinds. Call it in a space of its own."""
    rng = random.Random(seed)  # noqa: S311 - draws ports
    pairs = [*combinations(KINDS, 2), ("preserving", "preserving"), ("rejecting", "rejecting"), *NEIGHBORS]
    sites = [make_site("host", "public", 0, LineSpeed())]
    for kind in (kind for pair in pairs for kind in pair):
        behind = sites[-1].name if kind == "neighbor" else ""
        sites.append(make_site(f"home-{len(sites)}", kind, len(sites), LineSpeed(), behind=behind))
    with_line = [site for site in sites if not site.behind]
    with (
        machines_of(sites) as machines,
        running_router(Internet(with_line, rng), {site.name: machines[site.name] for site in with_line}),
    ):
        met = asyncio.run(_meet(machines["host"], [machines[site.name] for site in sites[1:]]))
    return {
        "nat": "kernel",
        "pairs": [{"kind_a": a, "kind_b": b, "direct": ok} for (a, b), ok in zip(pairs, met, strict=True)],
    }


async def _meet(host: Machine, homes: list[Machine]) -> list[bool]:
    """Whether each two neighbors of `homes` met."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(host.socket(socket.SOCK_STREAM))
        listener.bind(("", _PORT))
        listener.listen(len(homes))
        telling = asyncio.create_task(_tell_addresses(listener, len(homes), opened))
        seen = await asyncio.gather(*(_outside_address(home, port, opened) for port, home in _numbered(homes)))
        await telling
        targets = [seen[number ^ 1] for number in range(len(homes))]
        dials = (_dial(home, port, target) for (port, home), target in zip(_numbered(homes), targets, strict=True))
        dialed = await asyncio.gather(*dials)
    return [dialed[number] and dialed[number + 1] for number in range(0, len(homes), 2)]


async def _tell_addresses(listener: socket.socket, visitors: int, opened: contextlib.ExitStack) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(visitors):
        connection, address = await loop.sock_accept(listener)
        opened.enter_context(connection)
        await loop.sock_sendall(connection, json.dumps(address).encode())


def _numbered(homes: list[Machine]) -> list[tuple[int, Machine]]:
    """Each home with a port of its own: behind one carrier, two of the same port would get another outside."""
    return [(_HOME_PORT + number, home) for number, home in enumerate(homes)]


async def _outside_address(home: Machine, port: int, opened: contextlib.ExitStack) -> tuple[str, int]:
    """How a home's address looks from outside. The connection stays open: it keeps the router's mapping."""
    async with asyncio.timeout(_ASK_S):
        connection = opened.enter_context(_bound(home, port))
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, (_HOST, _PORT))
        address, seen = json.loads(await loop.sock_recv(connection, 1_000))
    return address, seen


async def _dial(home: Machine, port: int, target: tuple[str, int]) -> bool:
    loop = asyncio.get_running_loop()
    try:
        with await open_simultaneously(target, lambda: _bound(home, port), hold_s=_MEET_S) as connection:
            async with asyncio.timeout(_MEET_S):
                await loop.sock_sendall(connection, _HELLO)
                return await loop.sock_recv(connection, len(_HELLO)) == _HELLO
    except (OSError, TransportError):  # TimeoutError is an OSError
        return False


def _bound(home: Machine, port: int) -> socket.socket:
    made = home.socket(socket.SOCK_STREAM)
    made.bind(("", port))
    return made
