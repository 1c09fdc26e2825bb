"""Answer to peers that ask whether they can be dialed (AutoNAT), in place of the daemon's own.

The daemon answers too, but says "no" 15 s after the question, whenever its dial failed: the time of an answer shall
not tell what kind of host is behind an address. A home reserves its first circuit only after that "no". Here every "no"
takes five seconds, in which a lost SYN is repeated twice, and tells as little.

Only known-public hosts answer, and they dial the address alone from which the question came, at ports that the asker
names, within the budget for strangers' addresses.

The messages are those of version 1 (`/libp2p/autonat/1.0.0`), as protobuf: a peer asks whether it can be dialed; the
answer is yes, no, or that nobody tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum

from p2prl.clock import Clock
from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.net.transports import multiaddrs
from p2prl.net.transports.hivemind.daemon import read_message, sized_message
from p2prl.net.transports.hivemind.protobuf_fields import BYTES, VARINT, fields, varint
from p2prl.net.transports.tcp_trial import speaks_libp2p
from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.dial_rules import ADDRESSES_PER_DIAL, DialBudget, DialRules

PROTOCOL = "/libp2p/autonat/1.0.0"

MAX_MESSAGE_BYTES = 4_096
"""As in go-libp2p: a peer id and some dozen addresses."""

_DIAL, _DIAL_RESPONSE = 0, 1
"""Types of message."""

_MAX_ADDRESSES = 16
"""Of a request; more are not read. go-libp2p dials no more either."""


class Status(IntEnum):
    """Answer to a request."""

    OK = 0
    DIAL_FAILED = 100
    REFUSED = 101
    """Nobody tried: the asker asks another peer, or later."""


def asked_addresses(message: bytes) -> tuple[bytes, ...]:
    """The binary multiaddrs of a request. Raises `RemoteProtocolError` for anything else."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise RemoteProtocolError("autonat: the request is too large")
    kind, dial = _DIAL, b""
    for number, value in fields(message):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == 2 and isinstance(value, bytes):
            dial = value
    if kind != _DIAL:
        raise RemoteProtocolError("autonat: not a request")
    peer = b"".join(value for number, value in fields(dial) if number == 1 and isinstance(value, bytes))
    addresses = (value for number, value in fields(peer) if number == 2 and isinstance(value, bytes))
    return tuple(addresses)[:_MAX_ADDRESSES]


def answer_of(status: Status, address: bytes = b"") -> bytes:
    """The answer to a request; `address` is the binary multiaddr that was reached."""
    response = varint(1 << 3 | VARINT) + varint(status)
    if address:
        response += varint(3 << 3 | BYTES) + varint(len(address)) + address
    kind = varint(1 << 3 | VARINT) + varint(_DIAL_RESPONSE)
    return kind + varint(3 << 3 | BYTES) + varint(len(response)) + response


logger = logging.getLogger(__name__)

ANSWER_S = 5.0
"""From the question to "no": SYNs after 0, 1 and 3 s, and a round trip on the longest line."""

_QUESTION_S = 10.0
"""Longest wait for the question on its stream."""

_MOST_AT_ONCE = 64
"""Questions that are being answered, each with four dials: 256 sockets. Others are refused, and asked again later."""

Trial = Callable[[str, float], Awaitable[bool]]
"""Says whether a libp2p host answers at a multiaddr within seconds."""


class DialBack:
    """Answers questions on streams of `PROTOCOL`."""

    def __init__(self, clock: Clock, *, rules: DialRules | None = None, trial: Trial = speaks_libp2p) -> None:
        """`rules` say which addresses may be dialed: by default public ones."""
        self._clock = clock
        self._rules = rules or DialRules()
        self._trial = trial
        self._budget = DialBudget()
        self._answering = 0

    async def answer(
        self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen_at: str
    ) -> None:
        """Answer the one question of a stream. `seen_at` is the multiaddr that the peer's connection comes from."""
        try:
            async with asyncio.timeout(_QUESTION_S):
                question = asked_addresses(await read_message(reader, limit_bytes=MAX_MESSAGE_BYTES))
        except (TimeoutError, RemoteProtocolError) as error:
            logger.debug("no question: %s", error)
            return
        writer.write(sized_message(await self._answer_to(peer, question, seen_at)))
        await writer.drain()

    async def _answer_to(self, peer: PeerId, question: Sequence[bytes], seen_at: str) -> bytes:
        addresses = addresses_to_try(question, seen_at, peer, self._rules)
        if not addresses or self._answering >= _MOST_AT_ONCE or not self._budget.take(addresses[:1], self._clock.now()):
            return answer_of(Status.REFUSED)
        self._answering += 1
        try:
            reached = await self._first_reached(addresses)
        finally:
            self._answering -= 1
        return answer_of(Status.OK, multiaddrs.to_bytes(reached)) if reached else answer_of(Status.DIAL_FAILED)

    async def _first_reached(self, addresses: Sequence[str]) -> str:
        """The first address where somebody answers; empty after `ANSWER_S`, neither before nor later."""
        loop = asyncio.get_running_loop()
        until = loop.time() + ANSWER_S
        waiting = {asyncio.create_task(self._tried(address)) for address in addresses}
        try:
            while waiting and (left := until - loop.time()) > 0:
                done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if reached := next((task.result() for task in done if task.result()), ""):
                    return reached
        finally:
            for task in waiting:
                task.cancel()
        await asyncio.sleep(max(0.0, until - loop.time()))
        return ""

    async def _tried(self, address: str) -> str:
        return address if await self._trial(address, ANSWER_S) else ""


def addresses_to_try(question: Sequence[bytes], seen_at: str, peer: PeerId, rules: DialRules) -> tuple[str, ...]:
    """The multiaddrs to dial for a question: where it came from, then the ports that it names at the same IP address.

    Empty when that is no address of the peer's own, as of one behind a relay, or none that may be dialed.
    """
    parts = seen_at.split("/")
    if len(parts) != 5 or not rules.allows(seen_at, peer):
        return ()
    named = []
    for raw in question:
        with contextlib.suppress(ConfigError):
            other = (multiaddrs.from_bytes(raw) or "").split("/")
            if len(other) == 5 and other[1] == parts[1] and other[3] == "tcp":
                named.append("/".join((*parts[:3], "tcp", other[4])))
    allowed = [address for address in dict.fromkeys((seen_at, *named)) if rules.allows(address, peer)]
    return tuple(allowed[:ADDRESSES_PER_DIAL])
