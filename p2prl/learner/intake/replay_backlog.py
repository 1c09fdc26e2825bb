"""Backlog of stored groups: which to replay next, and which to settle without a replay. Pure.

Training needs the freshest groups, volunteers need every group settled, and a flood must cost only its own peer. So
peers take turns, each with its newest group first; those served longest ago come first, or with more peers than a batch
holds some would never have a turn. Keys cost nothing, so every other turn is of a peer with standing while any waits,
and peers whose groups mostly failed come last. A group that has grown too stale is settled at once and costs no replay:
nothing waits longer than the staleness bound.

When the buffer lacks nothing, a share of the time of each update goes to surplus replays, in the same turns, but each
peer with the group that expires soonest: newcomers are judged, and work that had to wait for the learner is credited,
although the swarm outruns training.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from p2prl.protocol.digests import Digest

STANDING_GROUPS = 8
"""Verified groups after which a peer has standing: as many as an honest volunteer delivers in its first minutes."""

_BATCH_BYTES = 32 * 1024 * 1024
"""Bytes of the groups of one batch, and one group more: thousands of usual size, three of the largest."""


@dataclass(frozen=True, slots=True)
class WaitingGroup:
    """A stored group without a receipt."""

    digest: Digest
    peer: bytes
    version: int
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BacklogConfig:
    """How much one batch holds, and how much is replayed beyond the buffer's want."""

    batch_groups: int
    """Most groups of one batch."""
    surplus_share: float
    """Time of surplus replays as a share of the time of updates."""
    newest_first: bool
    """Whether a peer's newest group comes first, or its oldest."""


class _Standing(Enum):
    """Classes of peers, by what came of their groups."""

    NEWCOMER = auto()
    KNOWN = auto()
    DISTRUSTED = auto()


class ReplayBacklog:
    """Stored groups that wait, those in replay, and the peers' standing."""

    def __init__(self, config: BacklogConfig, *, verified: Mapping[bytes, int]) -> None:
        """`verified` is how many groups of each peer were verified before."""
        self._config = config
        self._waiting: dict[Digest, WaitingGroup] = {}
        self._in_replay: set[Digest] = set()
        self._verified: Counter[bytes] = Counter(verified)
        self._failed: Counter[bytes] = Counter()
        self._batches = 0
        self._served: dict[bytes, int] = {}
        """Number of the last batch that held a group of a peer."""
        self._surplus_s = 0.0
        """Seconds left for surplus replays; below zero after a batch that took longer."""
        self._is_surplus = False

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def in_replay(self) -> int:
        """Groups in the batch that is being replayed."""
        return len(self._in_replay)

    @property
    def is_surplus(self) -> bool:
        """Whether the newest batch was chosen although the buffer lacked nothing."""
        return self._is_surplus

    def add(self, group: WaitingGroup) -> None:
        """Queue a group that was stored."""
        self._waiting.setdefault(group.digest, group)

    def settled(self, digests: Iterable[Digest]) -> None:
        """These groups have their receipts."""
        for digest in digests:
            self._waiting.pop(digest, None)
            self._in_replay.discard(digest)

    def peer_verified(self, peer: bytes) -> None:
        """A group of a peer passed its checks."""
        self._verified[peer] += 1

    def peer_failed(self, peer: bytes) -> None:
        """A group of a peer was rejected."""
        self._failed[peer] += 1

    def update_ended(self, seconds: float) -> None:
        """An update took this long. What it allows is for the next one's time: it is not saved up, a debt is."""
        self._surplus_s = min(self._surplus_s, 0.0) + self._config.surplus_share * seconds

    def replay_ended(self, seconds: float) -> None:
        """The replay of the newest batch took this long."""
        if self._is_surplus:
            self._surplus_s -= seconds

    def has_work(self, wanted: int, is_usable: Callable[[int], bool]) -> bool:
        """Whether there is a group to settle, or to replay."""
        idle = len(self._waiting) - len(self._in_replay)
        return bool(idle and (wanted or self._surplus_s > 0.0 or self.useless(is_usable, 1)))

    def useless(self, is_usable: Callable[[int], bool], most: int) -> list[WaitingGroup]:
        """Up to `most` waiting groups of versions that are not usable any more, with as many bytes as a batch."""
        usable = {version: is_usable(version) for version in {group.version for group in self._waiting.values()}}
        found = (g for g in self._waiting.values() if not usable[g.version] and g.digest not in self._in_replay)
        return _first_bytes([group for group, _ in zip(found, range(most), strict=False)])

    def next_batch(self, wanted: int) -> list[WaitingGroup]:
        """The groups to replay now, in the order they arrived; `wanted` is how many the buffer lacks.

        They stay in the backlog until they are settled, and are not chosen again. Nothing while a batch is in replay.
        """
        if self._in_replay or not self._waiting:
            return []
        if wanted:
            turns = (self._in_fair_turns(_newest_first) if self._config.newest_first else self._by_arrival())[:wanted]
        elif self._surplus_s > 0.0:
            turns = self._in_fair_turns(_oldest_first)
        else:
            return []
        self._is_surplus = not wanted
        order = {digest: place for place, digest in enumerate(self._waiting)}
        chosen = _first_bytes(_by_arrival_in_turns(turns[: self._config.batch_groups], order))
        self._in_replay = {group.digest for group in chosen}
        self._batches += 1
        self._served.update(dict.fromkeys((group.peer for group in chosen), self._batches))
        return chosen

    def _by_arrival(self) -> list[WaitingGroup]:
        """All waiting groups: the oldest of each peer, then the second of each, and so on."""
        return _in_turns(self._waiting.values(), lambda _: 0, lambda _: 0)

    def _in_fair_turns(self, rank: Callable[[WaitingGroup], int]) -> list[WaitingGroup]:
        """All waiting groups: newcomers and peers with standing alternate, each in turns; the distrusted come last."""
        classes: defaultdict[_Standing, list[WaitingGroup]] = defaultdict(list)
        for group in self._waiting.values():
            classes[self._standing(group.peer)].append(group)
        newcomers, known, distrusted = (
            _in_turns(classes[standing], rank, lambda peer: self._served.get(peer, 0)) for standing in _Standing
        )
        alternating = (each for pair in itertools.zip_longest(newcomers, known) for each in pair)
        return [*(group for group in alternating if group is not None), *distrusted]

    def _standing(self, peer: bytes) -> _Standing:
        if self._failed[peer] > self._verified[peer]:
            return _Standing.DISTRUSTED
        return _Standing.KNOWN if self._verified[peer] >= STANDING_GROUPS else _Standing.NEWCOMER


def _in_turns(
    groups: Iterable[WaitingGroup], rank: Callable[[WaitingGroup], int], served: Callable[[bytes], int]
) -> list[WaitingGroup]:
    """The first group of each peer by rank and arrival, then the second of each; peers served longest ago first."""
    by_peer: defaultdict[bytes, list[tuple[int, WaitingGroup]]] = defaultdict(list)
    for place, group in enumerate(groups):
        by_peer[group.peer].append((place, group))
    ranked = []
    for peer, waiting in by_peer.items():
        ordered = sorted(waiting, key=lambda entry: (rank(entry[1]), entry[0]))
        ranked += [(turn, served(peer), rank(group), place, group) for turn, (place, group) in enumerate(ordered)]
    return [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:-1])]


def _newest_first(group: WaitingGroup) -> int:
    return -group.version


def _oldest_first(group: WaitingGroup) -> int:
    return group.version


def _by_arrival_in_turns(groups: Sequence[WaitingGroup], order: dict[Digest, int]) -> list[WaitingGroup]:
    """Round-robin over the peers, oldest first: the order of receipts does not depend on how groups were chosen."""
    turns: Counter[bytes] = Counter()
    ranked = []
    for group in sorted(groups, key=lambda each: order[each.digest]):
        ranked.append((turns[group.peer], order[group.digest], group))
        turns[group.peer] += 1
    return [group for _, _, group in sorted(ranked, key=lambda entry: entry[:2])]


def _first_bytes(groups: Sequence[WaitingGroup]) -> list[WaitingGroup]:
    """Groups up to the first that exceeds `_BATCH_BYTES` together with those before it."""
    left, first = _BATCH_BYTES, []
    for group in groups:
        if left <= 0:
            break
        first.append(group)
        left -= group.size_bytes
    return first
