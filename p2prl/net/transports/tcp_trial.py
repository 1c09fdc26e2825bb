"""Trial of an address by a TCP connection, from which the other side learns nothing but this node's address."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Iterable
from enum import StrEnum

_TRIAL_S = 3.0
"""As long as a SYN and its first repetition take; a dead address delays a start by no more."""

_GREETING = b"\x13/multistream/1.0.0\n"
"""What both sides of a libp2p connection send first."""

_PROPOSALS = (b"\x3f/p2prl/".ljust(63, b"-") + b"\n") * 48
"""Proposals that every libp2p host refuses, sent at once after the greeting: they fill two packets of 1,500 bytes. A
host on whose way such packets are lost, and nobody says so, gives no answer."""

_REFUSAL_BYTES = 4

_HOSTS = frozenset({"ip4", "ip6", "dns", "dns4", "dns6"})


class Outcome(StrEnum):
    """What a trial of an address saw."""

    GREETED = "greeted"
    """A libp2p host greets there, and packets of full size reach it."""
    SHORT = "short packets alone"
    """A libp2p host greets there, and packets of full size do not reach it."""
    ACCEPTED = "no greeting"
    """A program accepts the connection and sends no libp2p greeting."""
    REFUSED = "refused"
    NO_ANSWER = "no answer"
    NO_ROUTE = "no route"
    """This machine knows no way to such addresses."""
    UNKNOWN_NAME = "unknown name"
    UNTRIED = "no TCP port"
    """The address is not a TCP port of a host."""


_NO_ROUTE = frozenset({errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})


async def outcome_of(address: str, timeout_s: float = _TRIAL_S) -> Outcome:
    """Connect to a multiaddr, see whether a libp2p host greets, and break off."""
    if not can_be_tried(address):
        return Outcome.UNTRIED
    parts = address.split("/")
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await asyncio.open_connection(parts[2], int(parts[4]))
    except TimeoutError:
        return Outcome.NO_ANSWER
    except (socket.gaierror, UnicodeError):
        return Outcome.UNKNOWN_NAME
    except ConnectionRefusedError:
        return Outcome.REFUSED
    except (OSError, OverflowError) as error:
        return Outcome.NO_ROUTE if getattr(error, "errno", None) in _NO_ROUTE else Outcome.NO_ANSWER
    try:
        if not await _greets(reader, writer, timeout_s):
            return Outcome.ACCEPTED
        return Outcome.GREETED if await _takes_long_packets(reader, writer, timeout_s) else Outcome.SHORT
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def can_be_tried(address: str) -> bool:
    """Whether a multiaddr, with or without `/p2p/<peer id>`, names a TCP port and nothing more, as circuits do."""
    parts = address.split("/")
    is_whole = len(parts) == 5 or (len(parts) == 7 and parts[5] == "p2p")
    return is_whole and parts[1] in _HOSTS and parts[3] == "tcp" and parts[4].isdigit()


async def accepts_connection(address: str) -> bool:
    """Whether a program listens there. Addresses that cannot be tried do not count."""
    async with _connected(address, _TRIAL_S) as streams:
        return streams is not None


async def speaks_libp2p(address: str, timeout_s: float) -> bool:
    """Whether a libp2p host listens there and greets within `timeout_s`."""
    async with _connected(address, timeout_s) as streams:
        if streams is None:
            return False
        return await _greets(*streams, timeout_s)


async def _greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float) -> bool:
    with contextlib.suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            writer.write(_GREETING)
            return await reader.readexactly(len(_GREETING)) == _GREETING
    return False


async def _takes_long_packets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, timeout_s: float) -> bool:
    with contextlib.suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(timeout_s):
            writer.write(_PROPOSALS)
            return len(await reader.readexactly(_REFUSAL_BYTES)) == _REFUSAL_BYTES
    return False


@contextlib.asynccontextmanager
async def _connected(
    address: str, timeout_s: float
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter] | None]:
    """A connection to a multiaddr, broken off at the end; None if there is none within `timeout_s`."""
    streams = None
    parts = address.split("/")
    if can_be_tried(address):
        with contextlib.suppress(OSError, TimeoutError, UnicodeError, OverflowError):
            async with asyncio.timeout(timeout_s):
                streams = await asyncio.open_connection(parts[2], int(parts[4]))
    try:
        yield streams
    finally:
        if streams is not None:
            streams[1].transport.abort()


MOST_RELAYS = 3
"""Relays at which a node reserves a circuit: two may end."""

_MOST_TRIED = 16


_MOST_MEASURED = 4


async def loses_long_packets(addresses: Iterable[str]) -> bool:
    """Whether this machine's line carries short packets alone: no host at these multiaddrs gets long ones, and one or
    more get short ones."""
    tried = tuple(filter(can_be_tried, addresses))[:_MOST_MEASURED]
    outcomes = await asyncio.gather(*map(outcome_of, tried))
    return Outcome.SHORT in outcomes and Outcome.GREETED not in outcomes


async def relays_among(addresses: Iterable[str]) -> tuple[str, ...]:
    """Relay candidates: the first address that answers of each of the first `MOST_RELAYS` peers that answer; the first
    one if none does.

    The daemon's candidates are fixed at its start, and it reserves no circuit for three minutes while one of them is
    dead. So each is tried first.

    `addresses` are multiaddrs ending in `/p2p/<peer id>`.
    """
    tried = tuple(addresses)[:_MOST_TRIED]
    answers = await asyncio.gather(*map(accepts_connection, tried))
    found: dict[str, str] = {}
    for address, is_up in zip(tried, answers, strict=True):
        if is_up:
            found.setdefault(address.rpartition("/p2p/")[2], address)
    return tuple(found.values())[:MOST_RELAYS] or tried[:1]
