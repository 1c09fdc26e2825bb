"""The learner as coordinator: whom it names to whom, and when a peer needs new names.

Every peer is linked with the learner if it can be, so the learner sees most of the swarm and draws the graph that
`p2prl.swarm.peers.topology` describes. It says the same names again and again, and others only when too many have
left or
the swarm has outgrown a short list: links that carry a transfer are not given up for a better draw. Without it peers
link at random (`p2prl.swarm.peers.connections`), which costs time and nothing else. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.swarm.peers.topology import Candidate, hand_out, introductions_of, median_upload
from p2prl.swarm.ports import Randomness

RELAYING = frozenset({Role.VOLUNTEER, Role.VALIDATOR, Role.SEEDER})
"""Roles that fetch weights and pass them on."""

_PERIOD_S = 5.0
"""How often the swarm is looked over: a newcomer fills its first links at random meanwhile."""

_ENOUGH = 0.75
"""Share of the names a peer should have that must still be here; below it names are added."""

_AGAIN_S = 300.0
"""How often a peer is told again what it was told: it may have started anew behind a link that never broke."""

_AT_ONCE = 64
"""Peers introduced in one look: a thousand that arrive together are drawn for in a minute and a half, not in one go."""


class Introductions:
    """What has been handed out, and what is due."""

    def __init__(self, rng: Randomness, now: float) -> None:
        self._rng = rng
        self._named: dict[PeerId, tuple[PeerId, ...]] = {}
        self._told_at: dict[PeerId, float] = {}
        self._next = now + _PERIOD_S

    def next_deadline(self) -> float:
        """When `take_due` may have something."""
        return self._next

    def take_due(self, swarm: Mapping[PeerId, Candidate], now: float) -> list[tuple[PeerId, tuple[PeerId, ...]]]:
        """(peer, its neighbours) for those of the linked peers in `swarm` that need names; nothing between periods."""
        if now < self._next:
            return []
        self._next = now + _PERIOD_S
        self._named = {peer: named for peer, named in self._named.items() if peer in swarm}
        self._told_at = {peer: at for peer, at in self._told_at.items() if peer in swarm}
        median_bytes_s = median_upload(swarm.values())
        due: list[tuple[PeerId, tuple[PeerId, ...]]] = []
        for peer, candidate in swarm.items():
            count = min(introductions_of(candidate.upload_bytes_s, median_bytes_s), len(swarm) - 1)
            present = [other for other in self._named.get(peer, ()) if other in swarm]
            if len(present) >= _ENOUGH * count and now < self._told_at.get(peer, now) + _AGAIN_S:
                continue
            self._told_at[peer] = now
            self._named[peer] = tuple(hand_out(peer, swarm, self._rng, count=count, kept=present))
            due.append((peer, self._named[peer]))
            if len(due) == _AT_ONCE:
                break
        return due
