"""Introductions: the neighbors the learner names to each peer, and when a peer needs new ones.

Every peer is linked with the learner if it can be, so the learner sees most of the swarm and draws the graph that
`p2prl.swarm.peers.topology` describes. It repeats the same introductions, and draws new ones only when too many of
the introduced peers have left or the swarm has outgrown a short list: a link that carries a transfer is not replaced
for a slightly better graph. Without introductions peers link at random (`p2prl.swarm.peers.discovery`), which only
costs time.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.swarm.peers.topology import Candidate, choose_neighbors, introduction_count, median_upload
from p2prl.swarm.ports import Randomness

RELAYING = frozenset({Role.VOLUNTEER, Role.VALIDATOR, Role.SEEDER})
"""Roles that download weights and pass them on."""

_PERIOD_S = 5.0
"""Period of the check. Until then a newcomer opens its first links at random."""

_ENOUGH = 0.75
"""Share of a peer's introductions that must still be linked; below it others are added."""

_REPEAT_S = 300.0
"""How often an introduction is repeated: the peer may have restarted behind a link that never broke."""

_MAX_PER_PERIOD = 64
"""Peers introduced per period: a thousand that arrive together are handled in a minute and a half, not at once."""


class Introductions:
    """Introductions made so far, and those due."""

    def __init__(self, rng: Randomness, now: float) -> None:
        self._rng = rng
        self._introduced: dict[PeerId, tuple[PeerId, ...]] = {}
        self._sent_at: dict[PeerId, float] = {}
        self._next = now + _PERIOD_S

    def next_deadline(self) -> float:
        """When `take_due` next checks the swarm."""
        return self._next

    def take_due(self, swarm: Mapping[PeerId, Candidate], now: float) -> list[tuple[PeerId, tuple[PeerId, ...]]]:
        """(peer, its neighbors) for the peers of `swarm` that need an introduction; empty between periods."""
        if now < self._next:
            return []
        self._next = now + _PERIOD_S
        self._introduced = {peer: others for peer, others in self._introduced.items() if peer in swarm}
        self._sent_at = {peer: at for peer, at in self._sent_at.items() if peer in swarm}
        median_bytes_s = median_upload(swarm.values())
        due: list[tuple[PeerId, tuple[PeerId, ...]]] = []
        for peer in _in_turn(swarm):
            candidate = swarm[peer]
            count = min(introduction_count(candidate.upload_bytes_s, median_bytes_s), len(swarm) - 1)
            present = [other for other in self._introduced.get(peer, ()) if other in swarm]
            if len(present) >= _ENOUGH * count and now < self._sent_at.get(peer, now) + _REPEAT_S:
                continue
            self._sent_at[peer] = now
            self._introduced[peer] = tuple(choose_neighbors(peer, swarm, self._rng, count=count, kept=present))
            due.append((peer, self._introduced[peer]))
            if len(due) == _MAX_PER_PERIOD:
                break
        return due


def _in_turn(swarm: Mapping[PeerId, Candidate]) -> list[PeerId]:
    """Peers of standing first, then one newcomer of each subnet, then the second ones: a flood of keys waits."""
    earlier: Counter[object] = Counter()
    place = {}
    for peer, candidate in swarm.items():
        place[peer] = (not candidate.is_known, earlier[candidate.subnet])
        earlier[candidate.subnet] += candidate.subnet is not None
    return sorted(swarm, key=lambda peer: place[peer])
