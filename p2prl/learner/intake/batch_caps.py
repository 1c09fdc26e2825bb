"""Caps of a batch: how much of an update one identity, and all newcomers together, may fill. Pure.

Keys are free, so a share of the training must not be had for keys alone. Of each update

* newcomers together fill at most `NEWCOMER_PERCENT` %, counted over the run: their places in update s of R groups are
  ⌊.15 R (s + 1)⌋ − ⌊.15 R s⌋, so that small batches have some too;
* one identity fills at most `IDENTITY_PERCENT` %, counted likewise;
* peers that are not *proven*, whose few groups may be chosen ones, fill nothing.

All bind only while others have ready groups: places that known peers cannot fill are the newcomers', and what these
cannot fill is for the rest. Within each of the three classes identities share alike over many updates (`FairTurns`), so
that beside ten that can fill the batches none has more than a tenth, and three have thirds. A swarm of newcomers alone
shares everything, and an update never waits for a cap.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

IDENTITY_PERCENT = 10
"""Of a batch, for one identity: ten are needed to fill one, and what one of them gets wrong is averaged away."""

NEWCOMER_PERCENT = 15
"""Of a batch, for all identities without standing together: fresh keys in any number move training no further. More
than one volunteer in ten is new only in a swarm's first minutes, when there is nobody else to fill its batches."""


_REMEMBERED = 4_096
"""Identities whose turns are remembered; the one trained on longest ago is forgotten first."""


@dataclass(frozen=True, slots=True)
class Contributor:
    """Whose group it is, as far as the caps are concerned."""

    identity: bytes
    """Public key that stands for all keys of one owner."""
    is_known: bool
    """Whether the identity has full standing."""
    is_proven: bool = True
    """Whether it has delivered without gaps for as long as makes a newcomer; a known one has."""


def newcomer_places(step: int, count: int) -> int:
    """Groups of newcomers in the update that starts at `step`, of `count` groups, while known peers can fill it."""
    share = NEWCOMER_PERCENT * count
    return share * (step + 1) // 100 - share * step // 100


def identity_places(step: int, count: int) -> int:
    """Groups of one newcomer in the update that starts at `step`, of `count` groups, while known peers can fill it."""
    share = IDENTITY_PERCENT * count
    return max(1, share * (step + 1) // 100 - share * step // 100)


class FairTurns:
    """Turns of identities over many batches: who has had least comes first, and an absence earns nothing.

    Start-time fair queueing (Goyal, Vin, Cheng 1996) with groups of one size: all that have groups ready get equally
    many in the long run, but those that have fewer, whose places are shared likewise.
    """

    def __init__(self) -> None:
        self._turn = 0
        """Number of the turn that was taken last."""
        self._next: OrderedDict[bytes, int] = OrderedDict()
        """Next turn of the identities served lately; others have the present one."""

    def choose(self, ready: Sequence[Contributor], among: Sequence[int], count: int) -> list[int]:
        """Indices of `count` of the ready groups `among`, which must be as many; of each identity the first ones."""
        waiting: dict[bytes, deque[int]] = {}
        for index in among:
            waiting.setdefault(ready[index].identity, deque()).append(index)
        turns = [(max(self._turn, self._next.get(who, 0)), mine[0], who) for who, mine in waiting.items()]
        heapq.heapify(turns)
        chosen = []
        for _ in range(count):
            turn, index, who = heapq.heappop(turns)
            chosen.append(index)
            waiting[who].popleft()
            self._turn = max(self._turn, turn)
            self._remember(who, turn + 1)
            if waiting[who]:
                heapq.heappush(turns, (turn + 1, waiting[who][0], who))
        return chosen

    def _remember(self, identity: bytes, turn: int) -> None:
        self._next[identity] = turn
        self._next.move_to_end(identity)
        if len(self._next) > _REMEMBERED:
            self._next.popitem(last=False)


class BatchChoice:
    """Chooses the batches of a run, one after the other."""

    def __init__(self) -> None:
        self._known, self._newcomers, self._others = FairTurns(), FairTurns(), FairTurns()

    def choose(self, ready: Sequence[Contributor], count: int, *, step: int) -> list[int]:
        """Indices of `count` of the ready groups, in their order, for the update that starts at `step`.

        There must be `count` ready groups: then there is always a batch.
        """
        assert len(ready) >= count
        known = [index for index, each in enumerate(ready) if each.is_known]
        newcomers = [index for index, each in enumerate(ready) if each.is_proven and not each.is_known]
        others = [index for index, each in enumerate(ready) if not each.is_proven]
        sizes = Counter(ready[index].identity for index in newcomers)
        within_caps = sum(min(size, identity_places(step, count)) for size in sizes.values())
        invited = min(newcomer_places(step, count), within_caps)
        of_newcomers = min(len(newcomers), count, max(invited, count - len(known)))
        of_known = min(len(known), count - of_newcomers)
        chosen = self._known.choose(ready, known, of_known)
        chosen += self._newcomers.choose(ready, newcomers, of_newcomers)
        return sorted(chosen + self._others.choose(ready, others, count - len(chosen)))
