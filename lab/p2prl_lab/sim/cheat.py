"""Dishonest volunteer of a simulated swarm: its knowledge, its means, and the port through which it publishes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.passing_port import PassingPort
from p2prl.protocol import frames
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.link_messages import Push
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.wire_codec import Wire
from p2prl.sim.simulated_run import SimulatedRun
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm import signals

_HEARD = 64
"""Groups of others that a copier remembers."""


@dataclass(frozen=True, slots=True)
class Cheat:
    """A dishonest volunteer."""

    identity: Identity
    kind: str
    """How it cheats."""
    kinds: dict[bytes, str]
    """The same of every key of the swarm, by public key; empty for honest ones."""
    simulated: SimulatedRun
    network: VirtualNetwork
    rng: random.Random
    neighbor: Identity | None = None
    """An honest volunteer whose owner is that of this machine, whose key was stolen."""
    heard: deque[RolloutGroup] = field(default_factory=lambda: deque(maxlen=_HEARD))
    """Newest groups of others: every volunteer gets all messages."""

    def send(self, key: Identity, body: Wire) -> None:
        """Send the learner what any key signed, which the own node would not publish. The key is the cheat's own then,
        unless it is known."""
        self.kinds.setdefault(key.public_key, self.kind)
        raw = seal(key, body, run=self.simulated.run, now=self.network.now)
        self.ask(self.identity.peer_id, Push(raw))

    def ask(self, peer: PeerId, message: Wire) -> None:
        """Send the learner a link message in the name of any peer that the network knows."""
        self.network.inject(peer, self.simulated.key.peer_id, frames.pack(message))


class PublishingPort(PassingPort):
    """A network port that publishes something else in place of each group; everything else passes."""

    def __init__(self, port: NetworkPort, publish: Callable[[Opened, RolloutGroup], Iterator[bytes]]) -> None:
        """`publish` gets the envelope of each group and the group in it, and gives envelopes."""
        super().__init__(port)
        self._publish = publish

    def send(self, message: control.ToNetwork) -> None:
        """Send a message, or what replaces it."""
        if isinstance(message, signals.Publish):
            opened = open_envelope(message.envelope, now=None)
            if isinstance(opened.body, RolloutGroup):
                for envelope in self._publish(opened, opened.body):
                    super().send(signals.Publish(envelope))
                return
        super().send(message)
