"""Simulated machines: a node with its link, power and clock."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NewType

from blake3 import blake3

from p2prl.protocol.identity import Identity, PeerId
from p2prl.sim.virtual_time import VirtualLoop
from p2prl.swarm.events import Event
from p2prl.swarm.node import Node

MakeNode = Callable[[float, random.Random], Node]
"""Builds a peer's node at `now`, on joining and after every restart. State that must survive is kept outside."""

Incarnation = NewType("Incarnation", int)
"""Number of crashes so far, so that actions scheduled before a crash can be recognized and skipped."""


@functools.lru_cache(maxsize=16_384)
def identity_of(name: str) -> Identity:
    """The identity of a simulated peer, derived from its name: the same on every run."""
    return Identity(blake3(f"simulated peer {name}".encode()).digest(16))


@dataclass(slots=True)
class Host:
    """A machine: its node while it is up, and its link.

    A record without methods, because the simulated network alone reads and changes it.
    """

    peer: PeerId
    run: bytes
    make: MakeNode
    on_event: Callable[[Event], None]
    upload_bytes_s: float
    download_bytes_s: float
    dialable: bool
    clock_offset_s: float
    shares_uplink: bool = False
    """Whether control frames use up the uplink too, as `p2prl.net.pacing` counts them: they never wait themselves."""
    node: Node | None = None
    """None while it is down."""
    incarnation: Incarnation = Incarnation(0)
    crashed_at: float = -1.0
    upload_free: float = 0.0
    """Virtual time at which the uplink has sent everything queued."""
    download_free: float = 0.0
    """Virtual time at which the downlink has received everything in transit."""
    pump_due: bool = False
    """Whether a turn of the node is scheduled."""
    noted: dict[PeerId, str] = field(default_factory=dict)
    """Where the node was told that each peer's frames come from."""
    armed: float = float("inf")
    """Virtual time of the node's timer."""


class HostClock:
    """The clock of one machine: virtual time plus the machine's offset."""

    def __init__(self, loop: VirtualLoop, host: Host) -> None:
        self._loop = loop
        self._host = host

    def now(self) -> float:
        return self._loop.now + self._host.clock_offset_s
