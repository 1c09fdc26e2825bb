"""The node's view of peers, for its transport: who is banned, who matters, and who broke the framing."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.clock import Clock
from p2prl.protocol.identity import PeerId
from p2prl.swarm.node import Node


class NodeGuard:
    """`PeerGuard` of one node."""

    def __init__(self, node: Node, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self.on_fault: Callable[[], None] = lambda: None
        """Called after a fault: the node may have something to report."""

    def note_address(self, peer: PeerId, address: str) -> None:
        self._node.note_address(peer, address)

    def is_banned(self, peer: PeerId) -> bool:
        return self._node.is_banned(peer, self._clock.now())

    def importance(self, peer: PeerId) -> int:
        """0 without a link, otherwise 1 and more by the link's class."""
        kind = self._node.link_class(peer, self._clock.now())
        return 0 if kind is None else 1 + kind

    def fault(self, peer: PeerId, reason: str) -> None:
        self._node.fault(peer, reason, self._clock.now())
        self.on_fault()
