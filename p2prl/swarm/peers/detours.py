"""Links that pass a circuit although the peer can be dialed, and when to dial it. Pure.

After a restart the first link may be a circuit: a learner dials the homes that it remembers. libp2p leaves such a
circuit by itself only where it knows its own public address, and behind a router that gives every remote another port
it never does. The circuit costs its relay every byte twice, and weights pass it last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from p2prl.protocol.identity import PeerId

_FIRST_S = 10.0
"""libp2p, or a meeting, has replaced the circuit by then, if it can."""

_AGAIN_S, _LONG_S = 30.0, 600.0
_TRIES = 4
"""Attempts after `_AGAIN_S`, two for each IP version; later ones come after `_LONG_S`."""

_AT_ONCE = 4
"""Dials at one moment: a dead address takes three seconds."""


@dataclass(slots=True)
class _Detour:
    next_at: float
    attempts: int = 0


class Detours:
    """Attempts so far, for the peers that are linked through circuits."""

    def __init__(self) -> None:
        self._detours: dict[PeerId, _Detour] = {}

    def due(self, relayed: Mapping[PeerId, Sequence[str]], now: float) -> list[tuple[PeerId, str]]:
        """Peers to dial now, and where. `relayed` are those linked through circuits, with their public addresses."""
        self._detours = {peer: self._detours.get(peer) or _Detour(now + _FIRST_S) for peer in relayed}
        ready = [peer for peer, detour in self._detours.items() if detour.next_at <= now and relayed[peer]]
        chosen = []
        for peer in sorted(ready, key=lambda peer: self._detours[peer].next_at)[:_AT_ONCE]:
            detour, addresses = self._detours[peer], relayed[peer]
            chosen.append((peer, addresses[detour.attempts % len(addresses)]))
            detour.attempts += 1
            detour.next_at = now + (_AGAIN_S if detour.attempts < _TRIES else _LONG_S)
        return chosen
