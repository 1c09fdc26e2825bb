"""Conditions of simulated links: latency, loss, reordering, partitions, and extra delay for chosen messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import frames, limits
from p2prl.protocol.envelope import Envelope
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind
from p2prl.protocol.link_messages import Push
from p2prl.protocol.wire_codec import decode
from p2prl.sim.delay_distributions import DelayDistribution, parse_delay
from p2prl.swarm.ports import Randomness

ExtraDelay = Callable[[Randomness, PeerId, PeerId, bytes], float]
"""(randomness, source, destination, frame) → seconds on top of the link's latency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkConditions:
    """Conditions of all links; `VirtualNetwork.host` sets each peer's own bandwidth."""

    latency: DelayDistribution = field(default_factory=lambda: parse_delay("uniform:0.02:0.12"))
    """One-way latency, seconds, drawn once for each frame."""
    loss: float = 0.0
    """Probability that a frame is lost silently; harsher than a real link, which would break."""
    reorder: float = 0.0
    """Probability that a frame may overtake earlier ones; the others keep the order of their size class."""
    turn_s: float = 0.002
    """Inputs of a node within this time are handled together, as in one turn of an event loop."""
    directory_latency: DelayDistribution = field(default_factory=lambda: parse_delay("uniform:0.05:0.3"))
    """Time of one directory put or get, seconds."""
    refused_s: float = 1.0
    """Time until a dial or a send to a crashed peer fails."""
    timeout_s: float = 10.0
    """Time until a dial or a send across a partition fails."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A cut between groups of peers for some time."""

    side: dict[PeerId, int]
    """Group of each peer; peers in no group can reach everyone."""
    begins: float
    ends: float

    def separates(self, one: PeerId, other: PeerId, now: float) -> bool:
        """Whether the two are cut off from each other at `now`."""
        if not self.begins <= now < self.ends:
            return False
        a, b = self.side.get(one), self.side.get(other)
        return a is not None and b is not None and a != b


def slow_envelopes(kind: Kind, delay: DelayDistribution) -> ExtraDelay:
    """Extra delay for pushed envelopes of one kind, such as rollout groups."""

    def extra(rng: Randomness, source: PeerId, destination: PeerId, frame: bytes) -> float:  # noqa: ARG001
        return delay.draw(rng) if _pushes(frame, kind) else 0.0

    return extra


def _pushes(frame: bytes, kind: Kind) -> bool:
    if frame[0] != Kind.PUSH:
        return False
    try:
        (message,) = frames.unpack(frame)
        assert isinstance(message, Push)
        return decode(message.envelope, Envelope, limit_bytes=limits.MAX_ENVELOPE_BYTES).kind == kind
    except RemoteProtocolError:
        return False  # malformed frames of an adversary travel as fast as the rest


def single_messages(frame: bytes) -> Iterable[bytes]:
    """The frame's messages, one frame each, when one of them may be an envelope; else the frame as it is."""
    if not any(kind == Kind.PUSH for kind, _ in frames.split(frame)):
        return (frame,)
    return (packed for _, packed in frames.split(frame))
