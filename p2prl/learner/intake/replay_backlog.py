"""Backlog of stored groups: which to replay next, and which to settle without a replay. Pure.

No group should wait until it is too stale, and a flood must cost only its author. So authors take turns, with all
machines of an owner as one author; those served longest ago come first, or with more authors than a batch holds some
would never have a turn. Keys cost nothing, so while groups of known peers wait all newcomers together have
`NEWCOMER_SHARE` of the replays' time, and peers whose groups mostly failed come last. A group that has grown too stale
is settled at once and costs no replay: nothing waits longer than the staleness bound.

An author's turn goes to its group that expires soonest. The number that waits decides the mean staleness, not the
order; this order loses no group that could be trained on, above all not the long completions of slow machines, which
arrive with old versions. Only while more wait than training takes in half the staleness bound, it goes to the author's
latest arrival: else every group would be trained on just before it expires. By arrival and not by version, so that what
is lost then does not depend on how long a group took.

When the buffer lacks nothing, a share of the time of each update goes to surplus replays, in the same turns, but each
author with the group that expires soonest: newcomers are judged, and work that had to wait for the learner is credited,
although the swarm outruns training.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from p2prl.protocol.digests import Digest
from p2prl.protocol.standing import Rank

NEWCOMER_SHARE = 0.2
"""Most of the replays' seconds for all newcomers together while groups of known peers wait. A little more than their
places in a batch, so that those never stay empty for want of a replay."""

_MOST_NEWCOMERS = 2
"""One of this many groups of a batch may be a newcomer's, however cheap they were, while groups of known peers wait:
those are wanted for training."""

_SAVED_S = 2.0
"""Most seconds of newcomers' replays that are saved up, or two replays if they take longer."""

_Order = Callable[[int, "WaitingGroup"], int]
"""(place in the order of arrival, group) -> lower comes first."""

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
    """Whether peers served longest ago come first, and a peer's latest group when more wait than `in_time`; else all is
    in order of arrival."""
    in_time: int = 0
    """Groups that training takes in half the staleness bound: while no more wait, those that expire soonest come
    first."""


@dataclass(frozen=True, slots=True)
class Held:
    """Groups that wait, of one peer or of several."""

    groups: int = 0
    size_bytes: int = 0


def _itself(peer: bytes) -> bytes:
    """Every peer is an author of its own."""
    return peer


class ReplayBacklog:
    """Stored groups that wait, and those in replay.

    More than twelve attributes, because what waits is counted by author and by peer.
    """

    def __init__(
        self, config: BacklogConfig, *, rank: Callable[[bytes], Rank], author: Callable[[bytes], bytes] = _itself
    ) -> None:
        """`rank` gives the class of a peer, now, and `author` the key that stands for its owner."""
        self._config = config
        self._rank = rank
        self._author = author
        self._waiting: dict[Digest, WaitingGroup] = {}
        self._authors: dict[Digest, bytes] = {}
        """Authors of the waiting groups, as of their arrival: a delegation may come or end meanwhile."""
        self._held: dict[bytes, Held] = {}
        """What waits of each author."""
        self._peers: Counter[bytes] = Counter()
        """Number of groups that wait of each peer."""
        self._in_replay: dict[Digest, WaitingGroup] = {}
        self._batches = 0
        self._served: dict[bytes, int] = {}
        """Number of the last batch that held a group of an author, of known ones and those with groups waiting."""
        self._surplus_s = 0.0
        """Seconds left for surplus replays; below zero after a batch that took longer."""
        self._is_surplus = False
        self._newcomers = NewcomerTime()

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

    def held(self, peer: bytes) -> Held:
        """What waits of a peer's author, whose machines count as one."""
        return self._held.get(self._author(peer), Held())

    def held_by_rank(self) -> dict[Rank, tuple[int, Held]]:
        """Number of authors with groups waiting, and what waits of them, by their class."""
        ranks = {peer: self._rank(peer) for peer in self._peers}
        authors: defaultdict[Rank, set[bytes]] = defaultdict(set)
        groups: Counter[Rank] = Counter()
        sizes: Counter[Rank] = Counter()
        for group in self._waiting.values():
            rank = ranks[group.peer]
            authors[rank].add(self._authors[group.digest])
            groups[rank] += 1
            sizes[rank] += group.size_bytes
        return {rank: (len(authors[rank]), Held(groups[rank], sizes[rank])) for rank in Rank}

    def add(self, group: WaitingGroup) -> None:
        """Queue a group that was stored."""
        if group.digest not in self._waiting:
            author = self._author(group.peer)
            held = self._held.get(author, Held())
            self._waiting[group.digest], self._authors[group.digest] = group, author
            self._held[author] = Held(held.groups + 1, held.size_bytes + group.size_bytes)
            self._peers[group.peer] += 1

    def settled(self, digests: Iterable[Digest]) -> None:
        """These groups have their receipts."""
        for digest in digests:
            self._in_replay.pop(digest, None)
            if (group := self._waiting.pop(digest, None)) is None:
                continue
            author = self._authors.pop(digest)
            self._peers[group.peer] -= 1
            if not self._peers[group.peer]:
                del self._peers[group.peer]
            held = self._held.pop(author)
            if held.groups > 1:
                self._held[author] = Held(held.groups - 1, held.size_bytes - group.size_bytes)
            elif self._rank(group.peer) is not Rank.KNOWN:
                self._served.pop(author, None)  # or the keys of a flood would fill the table

    def update_ended(self, seconds: float) -> None:
        """An update took this long. What it allows is for the next one's time: it is not saved up, a debt is."""
        self._surplus_s = min(self._surplus_s, 0.0) + self._config.surplus_share * seconds

    def replay_ended(self, seconds: float, *, newcomers_s: float = 0.0) -> None:
        """The replay of the newest batch took this long, and this much of it the groups of newcomers."""
        if self._is_surplus:
            self._surplus_s -= seconds
        ranks = [self._rank(group.peer) for group in self._in_replay.values()]
        self._newcomers.replayed(
            seconds,
            newcomers_s=newcomers_s,
            newcomers=len(ranks) - ranks.count(Rank.KNOWN),
            charged=Rank.KNOWN in ranks,
        )

    def has_work(self, wanted: int, is_useful: Callable[[WaitingGroup], bool], *, wanted_of_known: int = 0) -> bool:
        """Whether there is a group to settle, or to replay."""
        idle = len(self._waiting) - len(self._in_replay)
        if not idle:
            return False
        if wanted or self._surplus_s > 0.0 or self.useless(is_useful, 1):
            return True
        return bool(wanted_of_known) and any(self._rank(peer) is Rank.KNOWN for peer in self._peers)

    def useless(self, is_useful: Callable[[WaitingGroup], bool], most: int) -> list[WaitingGroup]:
        """Up to `most` waiting groups that are not useful any more, with as many bytes as a batch."""
        found = (g for g in self._waiting.values() if g.digest not in self._in_replay and not is_useful(g))
        return _first_bytes([group for group, _ in zip(found, range(most), strict=False)])

    def next_batch(self, wanted: int, *, wanted_of_known: int = 0) -> list[WaitingGroup]:
        """The groups to replay now, in the order they arrived; `wanted` is how many the buffer lacks.

        `wanted_of_known` is how many it lacks if they are of known peers. The groups stay in the backlog until they are
        settled, and are not chosen again. Nothing while a batch is in replay.
        """
        if self._in_replay or not self._waiting:
            return []
        most = self._config.batch_groups
        if wanted or wanted_of_known:
            turns = self._in_fair_turns(
                self._order(),
                most=min(most, max(wanted, wanted_of_known)),
                others=min(most, wanted),
            )
        else:
            turns = []
        self._is_surplus = not wanted and not turns
        if self._is_surplus and self._surplus_s > 0.0:
            turns = self._in_fair_turns(_oldest_first, most=most, others=most)
        order = {digest: place for place, digest in enumerate(self._waiting)}
        chosen = _first_bytes(_by_arrival_in_turns(turns, order))
        self._in_replay = {group.digest: group for group in chosen}
        self._batches += bool(chosen)
        self._served.update(dict.fromkeys((self._authors[group.digest] for group in chosen), self._batches))
        return chosen

    def _order(self) -> _Order:
        """The order of a peer's groups that training lacks."""
        if not self._config.newest_first:
            return _by_arrival
        return _latest_first if len(self._waiting) > self._config.in_time else _oldest_first

    def _in_fair_turns(self, rank: _Order, *, most: int, others: int) -> list[WaitingGroup]:
        """Up to `most` groups, `others` of them not of known peers: those in turns, newcomers in their share and in the
        places that are left, the distrusted last."""
        classes: defaultdict[Rank, list[WaitingGroup]] = defaultdict(list)
        ranks = {peer: self._rank(peer) for peer in self._peers}
        for group in self._waiting.values():
            classes[ranks[group.peer]].append(group)
        known, newcomers, distrusted = (
            _in_turns(classes[each], rank, self._authors, self._last_served)
            for each in (Rank.KNOWN, Rank.NEWCOMER, Rank.DISTRUSTED)
        )
        if not known:
            return [*newcomers, *distrusted][:others]
        places = min(others, self._newcomers.places(most))
        invited = _of_few_versions(newcomers, {group.version for group in known[: most - places]})[:places]
        chosen = [*known[: most - len(invited)], *invited]
        left = [group for group in (*newcomers, *distrusted) if group not in invited]
        return [*chosen, *left[: min(others - len(invited), most - len(chosen))]]

    def _last_served(self, author: bytes) -> int:
        return self._served.get(author, 0) if self._config.newest_first else 0


class NewcomerTime:
    """Seconds that replays of newcomers' groups may take while groups of known peers wait."""

    def __init__(self) -> None:
        self._left_s = 0.0
        self._group_s = 0.0
        """Seconds of one of their groups, lately; 0 until one was measured."""

    def replayed(self, seconds: float, *, newcomers_s: float, newcomers: int, charged: bool) -> None:
        """A batch took `seconds`, its `newcomers` groups `newcomers_s` of them; `charged` if known peers' waited."""
        if newcomers:
            each = newcomers_s / newcomers
            self._group_s = each if not self._group_s else (self._group_s + each) / 2
        if charged:
            earned = NEWCOMER_SHARE / (1.0 - NEWCOMER_SHARE) * (seconds - newcomers_s)
            self._left_s = min(max(_SAVED_S, 2 * self._group_s), self._left_s + earned - newcomers_s)

    def places(self, most: int) -> int:
        """Places for newcomers in a batch of `most` groups. By number, where time is not measured."""
        if not self._group_s:
            return max(1, int(NEWCOMER_SHARE * most))
        return min(max(1, most // _MOST_NEWCOMERS), max(0, int(self._left_s / self._group_s)))


def _of_few_versions(groups: Sequence[WaitingGroup], loaded: set[int]) -> list[WaitingGroup]:
    """Those of versions that are loaded anyway, and of the first group's: loading one costs more than many replays, so
    a flood must not name all of them."""
    versions = loaded | {group.version for group in groups[:1]}
    return [group for group in groups if group.version in versions]


def _in_turns(
    groups: Iterable[WaitingGroup], rank: _Order, authors: Mapping[Digest, bytes], served: Callable[[bytes], int]
) -> list[WaitingGroup]:
    """The first group of each author by rank and arrival, then the second of each; those served longest ago first."""
    by_author: defaultdict[bytes, list[tuple[int, WaitingGroup]]] = defaultdict(list)
    for place, group in enumerate(groups):
        by_author[authors[group.digest]].append((place, group))
    ranked = []
    for author, waiting in by_author.items():
        ordered = sorted(waiting, key=lambda entry: (rank(*entry), entry[0]))
        ranked += [
            (turn, served(author), rank(place, group), place, group) for turn, (place, group) in enumerate(ordered)
        ]
    return [entry[-1] for entry in sorted(ranked, key=lambda entry: entry[:-1])]


def _by_arrival(place: int, group: WaitingGroup) -> int:
    del place, group
    return 0


def _latest_first(place: int, group: WaitingGroup) -> int:
    del group
    return -place


def _oldest_first(place: int, group: WaitingGroup) -> int:
    del place
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
