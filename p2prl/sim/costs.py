"""Costs of a simulated swarm: processor seconds and memory of the machine, links, and times of spread."""

from __future__ import annotations

import math
import resource
import statistics
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import open_envelope
from p2prl.protocol.identity import PeerId
from p2prl.protocol.signed_group import GROUP_KINDS
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm.events import EnvelopeArrived, Event, VersionReady

_UNDER_WAY_S = 60.0
"""Groups sent later than this before the end may be under way."""

_MOST = 0.95
"""Share of the volunteers that a version has to reach."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Figures of one process that simulated a swarm."""

    cpu_s_per_volunteer_hour: float = 0.0
    """Processor seconds for an hour of virtual time of one volunteer, after all have joined."""
    join_cpu_s: float = 0.0
    """Processor seconds until five virtual seconds after the last volunteer came."""
    peak_bytes: int = 0
    """Largest memory of the process, with what it had imported before."""


class CostMeter:
    """The processor time of this process, in two parts: joining, and the rest."""

    def __init__(self) -> None:
        self._began = time.process_time()
        self._joined: tuple[float, float] | None = None

    def joined(self, elapsed_s: float) -> None:
        """All volunteers are there; `elapsed_s` are virtual seconds since the start."""
        self._joined = time.process_time(), elapsed_s

    def costs(self, volunteers: int, elapsed_s: float) -> Costs:
        """The costs so far."""
        now = time.process_time()
        joined, since_s = self._joined or (now, elapsed_s)
        hours = volunteers * (elapsed_s - since_s) / 3600
        per_hour = (now - joined) / hours if hours > 0 else 0.0
        unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kilobytes on Linux
        return Costs(per_hour, joined - self._began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


class Tally:
    """Groups on their way to the learner, and versions on their way to the volunteers."""

    def __init__(self, learner: PeerId | None = None) -> None:
        self._learner = learner
        self._sent: dict[Digest, float] = {}
        self._arrived: set[Digest] = set()
        self._seconds: dict[int, dict[PeerId, float]] = {}
        """Version → how long each volunteer waited for it."""

    def sent(self, envelope: bytes, now: float) -> None:
        """A volunteer publishes an envelope, for the first time or again."""
        opened = open_envelope(envelope, now=None)
        if opened.kind in GROUP_KINDS:
            self._sent.setdefault(opened.digest, now)

    def on_event(self, peer: PeerId, event: Event, now: float) -> None:
        """A node reports an event to its owner."""
        if isinstance(event, VersionReady):
            waited_s = now - event.manifest.created_ms / 1000
            self._seconds.setdefault(event.manifest.version, {}).setdefault(peer, waited_s)
        elif isinstance(event, EnvelopeArrived) and peer == self._learner:
            self._arrived.add(event.opened.digest)

    def groups_lost(self, now: float) -> int:
        """Groups sent a minute ago or earlier that have not reached the learner."""
        return sum(at <= now - _UNDER_WAY_S and name not in self._arrived for name, at in self._sent.items())

    def t95_s(self, volunteers: int) -> float | None:
        """The median over versions of the time until 95 % of the volunteers had one; None if none reached as many.

        Version 0 does not count: volunteers have yet to join.
        """
        enough = math.ceil(_MOST * volunteers)
        times = [
            sorted(reached.values())[enough - 1]
            for version, reached in self._seconds.items()
            if version > 0 and len(reached) >= enough
        ]
        return statistics.median(times) if times else None


def links_of(network: VirtualNetwork, peers: Iterable[PeerId]) -> float:
    """Links of these peers on average, of those that are up."""
    links = [len(network.node(peer).connections.links) for peer in peers if network.is_up(peer)]
    return statistics.fmean(links) if links else 0.0
