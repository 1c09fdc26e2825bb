"""What the virtual network is made of: the weather, machines, partitions, counters, and delays of some kinds only."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NewType

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import frames, limits
from p2prl.protocol.envelope import Envelope
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind
from p2prl.protocol.link_messages import Push
from p2prl.protocol.wire_codec import decode
from p2prl.sim.delay_laws import DelayLaw, parse_delay
from p2prl.sim.virtual_time import VirtualLoop
from p2prl.swarm.events import Event
from p2prl.swarm.node import Node
from p2prl.swarm.ports import Randomness

ExtraDelay = Callable[[Randomness, PeerId, PeerId, bytes], float]
"""(randomness, source, destination, frame) → seconds on top of the link's latency."""

MakeNode = Callable[[float, random.Random], Node]
"""Builds a peer's node at `now`: once when it joins and again after every restart. What must survive lies outside."""

Incarnation = NewType("Incarnation", int)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkConfig:
    """The weather. One law for all links; `VirtualNetwork.host` sets each peer's own bandwidth."""

    latency: DelayLaw = field(default_factory=lambda: parse_delay("uniform:0.02:0.12"))
    """One-way latency, seconds, drawn once for each frame."""
    loss: float = 0.0
    """Probability that a frame vanishes and nobody is told: harsher than life, where the link would break."""
    reorder: float = 0.0
    """Probability that a frame may overtake earlier ones; the others keep the order of their size class."""
    turn_s: float = 0.002
    """A node's inputs within this time are answered together, as in one turn of an event loop."""
    directory_latency: DelayLaw = field(default_factory=lambda: parse_delay("uniform:0.05:0.3"))
    """Time of one directory put or get, seconds."""
    refused_s: float = 1.0
    """How long a dial or a send to a crashed peer takes to fail."""
    timeout_s: float = 10.0
    """How long one across a partition takes to fail."""


@dataclass(slots=True)
class Host:
    """A machine: its node while it is up, and its link."""

    peer: PeerId
    run: bytes
    make: MakeNode
    on_event: Callable[[Event], None]
    upload_bytes_s: float
    download_bytes_s: float
    dialable: bool
    clock_offset_s: float
    node: Node | None = None
    incarnation: Incarnation = Incarnation(0)
    crashed_at: float = -1.0
    upload_free: float = 0.0
    download_free: float = 0.0
    pump_due: bool = False
    armed: float = float("inf")


@dataclass(slots=True)
class Counters:
    """What the network carried."""

    frames: int = 0
    """Frames delivered."""
    bytes: int = 0
    """Bytes of them."""
    bulk_bytes: int = 0
    """Bytes of them in weight chunks."""
    lost: int = 0
    """Frames that vanished, by chance, partition or crash."""
    dials: int = 0
    lookups: int = 0


@dataclass(frozen=True, slots=True)
class Partition:
    side: dict[PeerId, int]
    begins: float
    ends: float


class LoopClock:
    """A clock that is right: virtual time itself."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now(self) -> float:
        return self._loop.now


class HostClock:
    """The clock of one machine: virtual time, and how far it is off."""

    def __init__(self, loop: VirtualLoop, host: Host) -> None:
        self._loop = loop
        self._host = host

    def now(self) -> float:
        return self._loop.now + self._host.clock_offset_s


def slow_envelopes(kind: Kind, law: DelayLaw) -> ExtraDelay:
    """Extra delay by `law` for pushed envelopes of one kind (rollout groups, say), none for anything else."""

    def delay(rng: Randomness, source: PeerId, destination: PeerId, frame: bytes) -> float:  # noqa: ARG001
        return law.draw(rng) if _pushes(frame, kind) else 0.0

    return delay


def _pushes(frame: bytes, kind: Kind) -> bool:
    if frame[0] != Kind.PUSH:
        return False
    try:
        (message,) = frames.unpack(frame)
        assert isinstance(message, Push)
        return decode(message.envelope, Envelope, limit_bytes=limits.MAX_ENVELOPE_BYTES).kind == kind
    except RemoteProtocolError:
        return False  # a liar's junk travels at the speed of the rest


def single_messages(frame: bytes) -> Iterable[bytes]:
    """The frame's messages, one frame each, when one of them may be an envelope; else the frame as it is."""
    if not any(kind == Kind.PUSH for kind, _ in frames.split(frame)):
        return (frame,)
    return (packed for _, packed in frames.split(frame))
