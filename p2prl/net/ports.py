"""The transport port: all that the roles may ask of a network, whichever library carries it.

A transport moves opaque frames between authenticated peers and keeps small owner-signed records in a directory. It
knows nothing of what a frame means; `protocol.frames` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from p2prl.protocol.identity import PeerId

Receiver = Callable[[PeerId, bytes], None]
"""Takes the sender, proven by the connection's handshake, and one whole frame. On the event loop: it must not block."""


class Transport(Protocol):
    """One peer's place in the network. All methods belong to the event loop the transport was started on."""

    @property
    def peer_id(self) -> PeerId:
        """This peer, as the others see it."""
        ...

    @property
    def addresses(self) -> tuple[str, ...]:
        """Dialable multiaddrs of this peer, each ending in `/p2p/<peer id>`. They change as relays and routers come."""
        ...

    def set_receiver(self, on_frame: Receiver) -> None:
        """Names who gets arriving frames. Until then peers are told nothing and their sends fail."""
        ...

    async def connect(self, address: str) -> PeerId:
        """Dials a multiaddr that ends in `/p2p/<peer id>` and gives that peer. Raises `TransportError`."""
        ...

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        """Returns once the remote process holds the whole frame; raises `TransportError` otherwise.

        `frame` has 1 to `limits.MAX_FRAME_BYTES` bytes. After an error the frame may or may not have arrived. Frames
        to one peer that are of one size class (control or bulk) arrive in the order of the calls.
        """
        ...

    async def put_record(self, key: bytes, value: bytes, expires_at: float) -> bool:
        """Publishes `value` under (`key`, this peer), signed, until `expires_at` (Unix seconds).

        False when no replica took it, or one holds a record of this peer that expires later.
        """
        ...

    async def get_records(self, key: bytes) -> dict[PeerId, bytes]:
        """The freshest unexpired value of every owner under `key`, each with a verified owner signature."""
        ...

    async def close(self) -> None:
        """Ends every connection and process of this transport. May be called twice."""
        ...
