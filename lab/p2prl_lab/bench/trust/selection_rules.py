"""Ways to choose among one's own work slots, and the swarm's answer to a stream of slots that was chosen from. Pure.

A volunteer samples slots in order and leaves some out. `Stream` says which slots it delivers, and which of these
the learner trains on, with slot accounts or without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from p2prl.learner.intake import slot_accounts
from p2prl.learner.intake.slot_accounts import SLOTS_PER_FREE_LOSS, SlotAccount

_SECRET = b"p2prl bench trust"

_OFFERED_AGAIN = 16
"""Groups that a volunteer offers again at a time."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A group that a volunteer has sampled, and what it chooses by."""

    slot: int
    reward: float
    """Mean of its completions."""
    tokens: float
    """Mean length of its completions."""
    version: int = 0
    """Policy version it was sampled with."""


Rule = Callable[[Sequence[Sampled]], Sequence[Sampled]]
"""Those of a stretch of slots that are delivered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """A way to choose."""

    stretch: int
    """Slots sampled before one choice."""
    keep: Rule
    redoes: bool = False
    """Whether slots after the last that was kept are not left out but sampled again, under the next version."""


def _lowest(groups: Sequence[Sampled]) -> Sequence[Sampled]:
    return [min(groups, key=lambda group: (group.reward, group.slot))]


def _highest(groups: Sequence[Sampled]) -> Sequence[Sampled]:
    return [max(groups, key=lambda group: (group.reward, -group.slot))]


def _longest(groups: Sequence[Sampled]) -> Sequence[Sampled]:
    return [max(groups, key=lambda group: (group.tokens, -group.slot))]


def _without_best(groups: Sequence[Sampled]) -> Sequence[Sampled]:
    best = max(groups, key=lambda group: (group.reward, -group.slot))
    return [group for group in groups if group is not best]


def _without_good_tail(groups: Sequence[Sampled]) -> Sequence[Sampled]:
    """All groups up to the last of a reward no higher than the median."""
    median = sorted(group.reward for group in groups)[len(groups) // 2]
    kept = list(groups)
    while len(kept) > 1 and kept[-1].reward > median:
        kept.pop()
    return kept


SELECTIONS: Mapping[str, Selection] = MappingProxyType(
    {
        "honest": Selection(stretch=8, keep=lambda groups: groups),
        "lowest of 8": Selection(stretch=8, keep=_lowest),
        "highest of 8": Selection(stretch=8, keep=_highest),
        "longest of 8": Selection(stretch=8, keep=_longest),
        "without the best of 10": Selection(stretch=10, keep=_without_best),
        "without the best of 64": Selection(stretch=SLOTS_PER_FREE_LOSS, keep=_without_best),
        "redo the end of 8": Selection(stretch=8, keep=_without_good_tail, redoes=True),
    }
)
"""By name. The highest rewards do the most harm: a group whose completions are all right teaches nothing."""


@dataclass(slots=True)
class Stream:
    """The slots of one volunteer that follows a selection."""

    selection: Selection
    priced: bool
    """Whether the learner keeps slot accounts."""
    account: SlotAccount | None = None
    next_slot: int = 0
    sampled: int = 0
    delivered: int = 0
    used: int = 0
    """Groups that were credited and may be trained on."""
    _offered: list[Sampled] = field(default_factory=list)
    """Groups the learner has turned away: they are offered again."""

    def slots(self) -> range:
        """The slots that are sampled for the next choice."""
        return range(self.next_slot, self.next_slot + self.selection.stretch)

    def choose(self, groups: Sequence[Sampled], *, now: float) -> list[Sampled]:
        """Choose among the groups of `slots()`; returns those that the learner takes for training, in order."""
        self.sampled += len(groups)
        kept = self.selection.keep(groups)
        self.next_slot = (kept[-1] if self.selection.redoes else groups[-1]).slot + 1
        taken = list(self._settled(kept, now)) if self.priced else list(kept)
        self.delivered += len(kept)
        self.used += len(taken)
        return taken

    def _settled(self, groups: Sequence[Sampled], now: float) -> Iterator[Sampled]:
        again, self._offered = self._offered[:_OFFERED_AGAIN], self._offered[_OFFERED_AGAIN:]
        for group in (*again, *groups):
            account = self.account or slot_accounts.account_before(group.slot, group.version, now)
            account = slot_accounts.swept(account, now, lambda *_: True)
            if not slot_accounts.has_room(account, group.slot, now=now, has_work=lambda *_: True):
                self.account = account
                self._offered.append(group)
                continue
            arrival = slot_accounts.arrived(account, group.slot, group.version, stale=False, now=now)
            account = slot_accounts.swept(arrival.account, now, lambda *_: True)
            draw = slot_accounts.void_draw(_SECRET, b"cheat", group.slot)
            self.account, is_voided = slot_accounts.verified(account, draw)
            if arrival.awaited and not is_voided:
                yield group
