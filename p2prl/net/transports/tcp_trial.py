"""Trial of an address by a bare TCP connection, from which the other side learns nothing but this node's address."""

from __future__ import annotations

import asyncio
import contextlib

_TRIAL_S = 3.0
"""As long as a SYN and its first repetition take; a dead address delays a start by no more."""

_HOSTS = frozenset({"ip4", "ip6", "dns", "dns4", "dns6"})


def can_be_tried(address: str) -> bool:
    """Whether a multiaddr, with or without `/p2p/<peer id>`, names a TCP port and nothing more, as circuits do."""
    parts = address.split("/")
    is_whole = len(parts) == 5 or (len(parts) == 7 and parts[5] == "p2p")
    return is_whole and parts[1] in _HOSTS and parts[3] == "tcp" and parts[4].isdigit()


async def accepts_connection(address: str) -> bool:
    """Whether a program listens there. Addresses that cannot be tried do not count."""
    if not can_be_tried(address):
        return False
    parts = address.split("/")
    with contextlib.suppress(OSError, TimeoutError, UnicodeError, OverflowError):
        async with asyncio.timeout(_TRIAL_S):
            _, writer = await asyncio.open_connection(parts[2], int(parts[4]))
        writer.transport.abort()
        return True
    return False
