"""Circuits of a home that the daemon leaves without one: slots reserved at its relay, or at candidates.

The daemon reserves its slots itself at first (AutoRelay). It asks a relay that has failed it once, as one that restarts
does or one that is busy when the home starts, not again for an hour, and knows only those it was started with. A home
that nobody can dial is then reached by nobody. A reservation is one small message on a stream (circuit relay v2), the
relay keeps it by the peer's id, and the daemon takes incoming circuits that others have reserved for it. So this
process reserves where the daemon had a slot, or at the peers that it has dialed if it never had one, and names the
circuit.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence

from p2prl.errors import RemoteProtocolError, TransportError
from p2prl.net.transports.hivemind.daemon import read_message, sized_message
from p2prl.net.transports.hivemind.protobuf_fields import VARINT, fields, varint
from p2prl.net.transports.tcp_trial import MOST_RELAYS
from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.meetings import is_direct_public

logger = logging.getLogger(__name__)

HOP_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"

MAX_MESSAGE_BYTES = 4_096
"""As in go-libp2p."""

RENEW_S = 20.0
"""A slot is asked for again this often: a relay forgets it when the connection breaks, and says so to nobody."""

_MOST_CANDIDATES = 8
"""Peers that are asked for a first slot: most that a home has dialed may be relays, and a question is small."""

FIRST_S = 30.0
"""A daemon without a circuit after this time has none to come: it learns that nobody can dial it within 20 seconds."""

_ANSWER_S = 5.0

_RESERVE, _STATUS = 0, 2
"""Types of message."""

_OK = 100

OpenStream = Callable[[PeerId, str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


def reserve_message() -> bytes:
    """A request for a slot."""
    return varint(1 << 3 | VARINT) + varint(_RESERVE)


def is_granted(message: bytes) -> bool:
    """Whether an answer grants the slot. Raises `RemoteProtocolError` for what is no answer."""
    found = {number: value for number, value in fields(message) if isinstance(value, int)}
    if found.get(1) != _STATUS or 5 not in found:
        raise RemoteProtocolError("relay: not an answer")
    return found[5] == _OK


class RelaySlots:
    """The slots of one daemon, those that it has named and those that this process holds in their place."""

    def __init__(self, open_stream: OpenStream, *, own: PeerId, candidates: Sequence[str] = ()) -> None:
        """`open_stream` opens a stream to a peer on a protocol, and raises `TransportError`. `candidates` are the
        daemon's, multiaddrs ending in `/p2p/<id>`."""
        self._open_stream = open_stream
        self._own = own
        self._candidates: OrderedDict[PeerId, str] = OrderedDict()
        self._circuits: dict[PeerId, dict[str, None]] = {}
        """Circuit addresses that this home has had, by their relay."""
        self._held: set[PeerId] = set()
        self._began: float | None = None
        self._had_one = False
        self._asked_at = float("-inf")
        for each in candidates:
            self._offer(each)

    def _offer(self, address: str) -> None:
        """Keep a peer, at its newest public address, as a candidate; in place of the oldest one when there are many."""
        if is_direct_public(address):
            relay = PeerId(address.rpartition("/p2p/")[2])
            self._candidates[relay] = address
            self._candidates.move_to_end(relay)
            if len(self._candidates) > _MOST_CANDIDATES:
                self._candidates.popitem(last=False)

    async def completed(self, named: Iterable[str], now: float) -> tuple[str, ...]:
        """The addresses that the daemon names, and the circuits that it has lost and this process holds.

        Nothing is held while the daemon has a circuit, or an address at which others can dial it.
        """
        own = tuple(named)
        circuits = [address for address in own if "/p2p-circuit" in address]
        for address in circuits:
            relay = PeerId(address.partition("/p2p-circuit")[0].rpartition("/")[2])
            self._circuits.setdefault(relay, {})[address] = None
        self._had_one |= bool(circuits)
        if circuits or any(map(is_direct_public, own)):
            self._held.clear()
            return own
        self._began = now if self._began is None else self._began
        if now - self._asked_at < RENEW_S:
            pass
        elif self._had_one:
            self._held = await self._granted(self._circuits)
            self._asked_at = now if self._held else self._asked_at
        elif now - self._began >= FIRST_S:
            await self._ask_candidates()
            self._asked_at = now  # even without a slot: they may be no relays
        return (
            *own,
            *(address for relay in self._circuits if relay in self._held for address in self._circuits[relay]),
        )

    async def _ask_candidates(self) -> None:
        """Ask for first slots, `MOST_RELAYS` peers at a time, until one grants some."""
        candidates = list(self._candidates)
        for first in range(0, len(candidates), MOST_RELAYS):
            self._held = await self._granted(candidates[first : first + MOST_RELAYS])
            if self._held:
                break
        for relay in filter(self._held.__contains__, candidates):
            self._circuits[relay] = {f"{self._candidates[relay]}/p2p-circuit/p2p/{self._own}": None}
        self._had_one = bool(self._held)

    async def _granted(self, relays: Iterable[PeerId]) -> set[PeerId]:
        """Those of `relays` that grant a slot now."""
        asked = tuple(relays)
        granted = await asyncio.gather(*map(self._reserve, asked))
        return {relay for relay, is_held in zip(asked, granted, strict=True) if is_held}

    def reached(self, address: str, peer: PeerId) -> bool:
        """Note that a connection with a peer at `address` has begun: whether a slot there, if there was one, is to be
        asked for now and not at the next renewal."""
        self._offer(address)
        if peer not in self._circuits:
            return False
        self._held.discard(peer)
        self._asked_at = float("-inf")
        return True

    async def _reserve(self, relay: PeerId) -> bool:
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await self._open_stream(relay, HOP_PROTOCOL)
                with contextlib.closing(writer):
                    writer.write(sized_message(reserve_message()))
                    await writer.drain()
                    return is_granted(await read_message(reader, limit_bytes=MAX_MESSAGE_BYTES))
        except (OSError, EOFError, TransportError, RemoteProtocolError) as error:  # TimeoutError is an OSError
            logger.debug("no slot at relay %s: %s", relay, error)
            return False
