"""The peer directory over hivemind's DHT: signed records under a key, and clock readings of the peers met."""

from __future__ import annotations

import asyncio
import logging
import math
import statistics
from typing import Any

from p2prl.clock import Clock
from p2prl.errors import LocalProtocolError, TransportError
from p2prl.net.ports import PeerGuard
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.directory_records import MAX_RECORD_BYTES, MAX_RECORD_TTL_S
from p2prl.net.transports.hivemind.hardened_dht import start_dht_node
from p2prl.protocol import limits
from p2prl.protocol.identity import SIGNATURE_BYTES, Identity, PeerId

logger = logging.getLogger(__name__)

TIMEOUT_S = 10.0
"""One directory operation; measured at 30 nodes: 31 to 140 ms."""

CLOCK_SKEW_WARNING_S = 2.0
"""The directory fails when clocks differ by more than 3 s."""

_MAX_CLOCK_READINGS = 64
"""Peers whose clocks are remembered; their median is this machine's offset."""


class Directory:
    """This peer's part of the directory. Build it with `start`."""

    def __init__(self, node: Any, peer_id: PeerId, clock: Clock) -> None:
        self._node = node
        self._peer_id = peer_id
        self._clock = clock
        self._skews: dict[PeerId, tuple[float, float]] = {}
        """Peer → (seconds we are ahead of it, round trip of that reading): the true value is within half of it."""

    @classmethod
    async def start(cls, p2p: Any, identity: Identity, clock: Clock, guard: PeerGuard | None = None) -> Directory:
        """Start a DHT node on hivemind's client. With a guard, linked peers keep their records when room is short."""
        return cls(await start_dht_node(p2p, identity, clock, guard), identity.peer_id, clock)

    @property
    def clock_skew_s(self) -> float | None:
        """Seconds this machine's clock is ahead of the peers it met (their median); None when it met none."""
        return statistics.median(skew for skew, _ in self._skews.values()) if self._skews else None

    @property
    def least_clock_skew_s(self) -> float:
        """The least error of the clock that the round trips allow: a slow answer is no wrong clock."""
        least = (math.copysign(max(0.0, abs(skew) - trip / 2), skew) for skew, trip in self._skews.values())
        return statistics.median(least) if self._skews else 0.0

    async def put(self, key: bytes, value: bytes, expires_at: float) -> bool:
        if len(value) + SIGNATURE_BYTES + 8 > MAX_RECORD_BYTES:
            raise LocalProtocolError(f"a directory record of {len(value)} bytes is too large")
        if expires_at > self._clock.now() + MAX_RECORD_TTL_S:
            raise LocalProtocolError(f"a directory record lives {MAX_RECORD_TTL_S:.0f} s at most")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return bool(await self._node.store(key, value, float(expires_at), subkey=str(self._peer_id)))
        except TimeoutError as error:
            raise TransportError(f"the directory did not store the record in {TIMEOUT_S:.0f} s") from error

    async def get(self, key: bytes) -> dict[PeerId, bytes]:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                found = await self._node.get(key, latest=True)
        except TimeoutError as error:
            raise TransportError(f"the directory did not answer in {TIMEOUT_S:.0f} s") from error
        if found is None or not isinstance(found.value, dict):
            return {}
        now = self._clock.now()
        return {
            PeerId(owner): entry.value
            for owner, entry in found.value.items()
            if isinstance(entry.value, bytes) and entry.expiration_time > now
        }

    async def introduce(self, peer: PeerId) -> None:
        """Add a peer to the DHT's routing table and compare clocks. A peer without a directory is ignored."""
        library = light_import.load()
        protocol = self._node.protocol
        remote = library.PeerID.from_base58(peer)
        sent_at = self._clock.now()
        try:
            request = library.dht_pb2.PingRequest(peer=protocol.node_info, validate=False)
            reply = await protocol.get_stub(remote).rpc_ping(request, timeout=protocol.wait_timeout)
        except (library.P2PDaemonError, library.P2PHandlerError, TimeoutError) as error:
            logger.debug("peer %s has no directory: %s", peer, error)
            return
        if reply.dht_time:
            answered_at = self._clock.now()
            self._skews[peer] = (sent_at + answered_at) / 2 - reply.dht_time, max(0.0, answered_at - sent_at)
            while len(self._skews) > _MAX_CLOCK_READINGS:
                del self._skews[next(iter(self._skews))]
        if reply.peer.node_id:
            node_id = type(self._node.node_id).from_bytes(reply.peer.node_id)
            await protocol.update_routing_table(node_id, remote, responded=True)

    async def join(self) -> None:
        """Find this node's neighbors in the DHT, through the peers introduced so far."""
        await self._node.find_nearest_nodes([self._node.node_id])

    def warn_of_skew(self) -> None:
        """Log a clock that is wrong enough to disturb the directory.

        Beyond the wire's tolerance the node itself warns the user, with the remedy; one warning is enough.
        """
        skew = self.clock_skew_s
        is_wrong = abs(self.least_clock_skew_s) > CLOCK_SKEW_WARNING_S
        if skew is not None and is_wrong and abs(skew) <= limits.MAX_CLOCK_SKEW_S:
            logger.warning(
                "this machine's clock is %.1f s %s the swarm's: its directory records will be refused or short-lived. "
                "Turn on automatic time (NTP).",
                abs(skew),
                "ahead of" if skew > 0 else "behind",
            )

    def close(self) -> None:
        """Stop the DHT node's background work."""
        self._node.is_alive = False
