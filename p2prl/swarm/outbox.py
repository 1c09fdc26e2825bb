"""Pack outgoing messages into frames: control messages to one peer share frames, each chunk has its own."""

from __future__ import annotations

from collections.abc import Container, Iterable

from p2prl.protocol import frames
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import Chunk
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.events import Send

Outbox = list[tuple[PeerId, Wire]]


def take_frames(outboxes: Iterable[Outbox], *, linked: Container[PeerId]) -> list[Send]:
    """Empty the outboxes into frames, control before bulk.

    Control messages to peers that are not `linked` are dropped. A chunk is sent regardless: the relay waits for the
    report that it was sent.
    """
    by_peer: dict[PeerId, list[bytes]] = {}
    bulk: list[Send] = []
    for outbox in outboxes:
        for peer, message in outbox:
            if isinstance(message, Chunk):
                bulk.append(Send(peer, frames.pack(message), bulk=True))
            elif peer in linked:
                by_peer.setdefault(peer, []).append(frames.pack(message))
        outbox.clear()
    control = [Send(peer, frame, bulk=False) for peer, packed in by_peer.items() for frame in frames.join(packed)]
    return control + bulk
