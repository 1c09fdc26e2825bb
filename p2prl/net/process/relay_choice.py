"""Choice of relay candidates: the known peers that accept a connection now.

The daemon's candidates are fixed at its start, and it reserves no circuit for three minutes while one of them is dead.
So each is tried first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from p2prl.net.transports.tcp_trial import accepts_connection

MOST_RELAYS = 3
"""Relays at which a node reserves a circuit: two may end."""

_MOST_TRIED = 16


async def relays_among(addresses: Iterable[str]) -> tuple[str, ...]:
    """The first address that answers of each of the first `MOST_RELAYS` peers that answer; the first one if none does.

    `addresses` are multiaddrs ending in `/p2p/<peer id>`.
    """
    tried = tuple(addresses)[:_MOST_TRIED]
    answers = await asyncio.gather(*map(accepts_connection, tried))
    found: dict[str, str] = {}
    for address, is_up in zip(tried, answers, strict=True):
        if is_up:
            found.setdefault(address.rpartition("/p2p/")[2], address)
    return tuple(found.values())[:MOST_RELAYS] or tried[:1]
