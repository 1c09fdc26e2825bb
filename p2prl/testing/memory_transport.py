"""Transports that share one event loop, without sockets, for tests of code that drives a transport."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from p2prl.clock import Clock
from p2prl.errors import TransportError
from p2prl.net.ports import Receiver
from p2prl.protocol import limits
from p2prl.protocol.identity import PeerId


@dataclass(slots=True)
class MemoryHub:
    """State that the transports of one test share: peers, broken links and the directory."""

    clock: Clock
    transports: dict[PeerId, MemoryTransport] = field(default_factory=dict)
    severed: set[frozenset[PeerId]] = field(default_factory=set)
    """Pairs that cannot reach each other."""
    records: dict[bytes, dict[PeerId, tuple[bytes, float]]] = field(default_factory=dict)


class MemoryTransport:
    """A `Transport` that delivers frames in the next turn of the event loop."""

    def __init__(self, hub: MemoryHub, peer_id: PeerId) -> None:
        self._hub = hub
        self._peer_id = peer_id
        self._receiver: Receiver | None = None
        hub.transports[peer_id] = self

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        return (f"/ip4/127.0.0.1/tcp/4001/p2p/{self._peer_id}",)

    def set_receiver(self, on_frame: Receiver) -> None:
        self._receiver = on_frame

    async def connect(self, address: str) -> PeerId:
        peer = PeerId(address.rsplit("/p2p/", 1)[-1])
        await asyncio.sleep(0)
        self._reach(peer)
        return peer

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        assert 0 < len(frame) <= limits.MAX_FRAME_BYTES
        async with asyncio.timeout(timeout_s):
            await asyncio.sleep(0)
        receiver = self._reach(peer)._receiver
        if receiver is None:
            raise TransportError("the peer does not accept frames yet")
        receiver(self._peer_id, frame)

    async def put_record(self, key: bytes, value: bytes, expires_at: float) -> bool:
        await asyncio.sleep(0)
        held = self._hub.records.setdefault(key, {}).get(self._peer_id)
        if held is not None and held[1] > expires_at:
            return False
        self._hub.records[key][self._peer_id] = (value, expires_at)
        return True

    async def get_records(self, key: bytes) -> dict[PeerId, bytes]:
        await asyncio.sleep(0)
        now = self._hub.clock.now()
        return {owner: value for owner, (value, at) in self._hub.records.get(key, {}).items() if at > now}

    async def wait_stopped(self) -> None:
        await asyncio.Event().wait()

    async def close(self) -> None:
        if self._hub.transports.get(self._peer_id) is self:
            del self._hub.transports[self._peer_id]

    def _reach(self, peer: PeerId) -> MemoryTransport:
        other = self._hub.transports.get(peer)
        gone = self._hub.transports.get(self._peer_id) is not self
        if other is None or gone or frozenset({peer, self._peer_id}) in self._hub.severed:
            raise TransportError(f"{peer} does not respond")
        return other
