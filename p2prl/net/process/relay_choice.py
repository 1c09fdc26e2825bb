"""Choice of relay candidates: the known peers that accept a connection now.

The daemon's candidates are fixed at its start, and it reserves no circuit for three minutes while one of them is dead.
So each is tried first, by a bare TCP connection, from which the other side learns nothing but this node's address.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

MOST_RELAYS = 3
"""Relays at which a node reserves a circuit: two may end."""

_MOST_TRIED = 16

_TRIAL_S = 3.0
"""As long as a SYN and its first repetition take; dead addresses delay a start by no more."""

_HOSTS = frozenset({"ip4", "ip6", "dns", "dns4", "dns6"})


async def relays_among(addresses: Iterable[str]) -> tuple[str, ...]:
    """The first address that answers of each of the first `MOST_RELAYS` peers that answer; the first one if none does.

    `addresses` are multiaddrs ending in `/p2p/<peer id>`.
    """
    tried = tuple(addresses)[:_MOST_TRIED]
    answers = await asyncio.gather(*map(_answers, tried))
    found: dict[str, str] = {}
    for address, is_up in zip(tried, answers, strict=True):
        if is_up:
            found.setdefault(address.rpartition("/p2p/")[2], address)
    return tuple(found.values())[:MOST_RELAYS] or tried[:1]


async def _answers(address: str) -> bool:
    """Whether a program listens there. Addresses that cannot be tried, as circuits, do not count."""
    parts = address.split("/")
    if len(parts) != 7 or parts[1] not in _HOSTS or parts[3] != "tcp" or not parts[4].isdigit():
        return False
    with contextlib.suppress(OSError, TimeoutError, UnicodeError, OverflowError):
        async with asyncio.timeout(_TRIAL_S):
            _, writer = await asyncio.open_connection(parts[2], int(parts[4]))
        writer.transport.abort()
        return True
    return False
