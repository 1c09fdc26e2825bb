"""Joining through the bootstrap peers of a join link, the same for every transport."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from p2prl.errors import TransportError, UnreachableError
from p2prl.net.ports import Transport
from p2prl.net.transports import multiaddrs

logger = logging.getLogger(__name__)


async def dial_bootstrap(transport: Transport, bootstrap: Sequence[str]) -> int:
    """Dial the bootstrap peers, without this peer itself, and return how many answered.

    Raises `UnreachableError` when there are some and none answered, `ConfigError` for a malformed address.
    """
    others = [address for address in bootstrap if multiaddrs.split_peer(address)[1] != transport.peer_id]
    results = await asyncio.gather(*map(transport.connect, others), return_exceptions=True)
    for result in results:
        if isinstance(result, TransportError):
            logger.debug("%s", result)  # reported by the error below if no other peer answered
        elif isinstance(result, BaseException):
            raise result
    reached = sum(isinstance(result, str) for result in results)
    if others and not reached:
        raise UnreachableError(
            f"no peer of the run answered at {', '.join(others)}",
            remedy="Check your connection and firewall, or ask for a newer join link.",
        )
    return reached
