"""Joining through the bootstrap peers of a join link, the same for every transport."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from p2prl.errors import TransportError, UnreachableError
from p2prl.net.transports import multiaddrs
from p2prl.protocol.identity import PeerId

logger = logging.getLogger(__name__)


class Dialer(Protocol):
    """The part of a transport that is needed here."""

    @property
    def peer_id(self) -> PeerId: ...

    async def connect(self, address: str) -> PeerId: ...


_GRACE_S = 2.0
"""How long the others may take once one has answered: a dead address takes 15 s, and must not delay a start."""


async def dial_bootstrap(transport: Dialer, bootstrap: Sequence[str]) -> int:
    """Dial the bootstrap peers, without this peer itself, and return how many answered until soon after the first.

    Raises `UnreachableError` when there are some and none answered, `ConfigError` for a malformed address.
    """
    others = [address for address in bootstrap if multiaddrs.split_peer(address)[1] != transport.peer_id]
    if not others:
        return 0
    dials = {asyncio.create_task(transport.connect(address)) for address in others}
    try:
        reached = await _reached(dials)
    finally:
        for dial in dials:
            dial.cancel()
        await asyncio.gather(*dials, return_exceptions=True)
    if not reached:
        raise UnreachableError(
            f"no peer of the run answered at {', '.join(others)}",
            remedy="Check your connection and firewall, or ask for a newer join link.",
        )
    return reached


async def _reached(dials: set[asyncio.Task[PeerId]]) -> int:
    reached, waiting = 0, dials
    until: float | None = None
    loop = asyncio.get_running_loop()
    while waiting and (until is None or loop.time() < until):
        timeout_s = None if until is None else max(0.0, until - loop.time())
        done, waiting = await asyncio.wait(waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        for dial in done:
            error = dial.exception()
            if error is None:
                reached += 1
            elif isinstance(error, TransportError):
                logger.debug("%s", error)  # reported by the caller's error if no other peer answered
            else:
                raise error
        if reached and until is None:
            until = loop.time() + _GRACE_S
    return reached
