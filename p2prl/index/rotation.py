"""Rotation of a machine over listed runs: when it leaves one, which one it takes next, and what it says about it.

The shell (`p2prl join --any`) starts a worker for each run in turn, and tells what it sees: new listings, what the
worker reports, and how it ended. Here is decided what follows. Pure: time and chance are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from p2prl import exit_codes
from p2prl.index.run_choice import Machine, Offer, Wishes, choose, left_out, moved
from p2prl.plain_text import counted
from p2prl.protocol.listing import OpenedListing, run_id

LEAST_STAY_S = 30.0
"""A machine that has its first group of a run serves it at least this long before it moves to one in greater need."""

STAY_PER_START = 4.0
"""And this many times as long as it took until that group: the weights it fetched must be worth it."""

DELISTED_S = 20.0
"""Time without a listing of the run after which it counts as gone, by two answers of an index at least."""

FORGOTTEN_S = 90.0
"""The same where more than half of the listings went at once: an index that restarts has none, and learners list their
runs again within a minute."""

EMPTY_S = 240.0
"""Time for which a run that says it has nobody draws machines beyond its part. By then it has one, or says so
falsely."""

QUIET_S = 300.0
"""Time without its learner in reach after which a run is left although it is listed: a restart takes less."""

VISIT_AGAIN_S = 600.0
"""Least time between two starts for a run that are made only to deliver what is left, or since it was left for another
in greater need."""

FAILURES_TO_END = 3
"""Runs in a row that end before their first group, by the machine's fault as they say: then it is the machine's."""

_MACHINE_FAULTS = (
    exit_codes.USAGE,
    exit_codes.CONFIGURATION,
    exit_codes.MACHINE,
    exit_codes.UPDATE_REQUIRED,
    exit_codes.IDENTITY,
)

OWNERS_END = (0, exit_codes.INTERRUPTED)
"""Exit codes of a worker that its owner ended."""


@dataclass(frozen=True, slots=True)
class Avoidance:
    """A run that is not taken for a time, and why."""

    until: float
    """Seconds since the epoch."""
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """What follows from the end of a worker."""

    why: str
    """The end of a sentence that begins with the run's name."""
    avoid_s: float
    blocks: bool = False
    """Whether the run is put on the block list: it broke the rules or refuses right work."""


_EXCLUDED = Ending(why="has excluded this machine's key; it is left for an hour", avoid_s=3_600.0)

_REFUSES_RIGHT_WORK = Ending(
    why="rejects groups that this machine has replayed and found right; it is blocked here",
    avoid_s=86_400.0,
    blocks=True,
)

_ENDINGS: Mapping[int, Ending] = {
    exit_codes.RUN_FINISHED: Ending(why="has ended", avoid_s=300.0),
    exit_codes.REFUSED_RUN: Ending(why="broke the rules of runs; it is blocked here", avoid_s=86_400.0, blocks=True),
    exit_codes.WORK_REFUSED: Ending(
        why="refuses this machine's work, and nothing here says that the work is wrong; it is blocked here",
        avoid_s=86_400.0,
        blocks=True,
    ),
    exit_codes.UNREACHABLE: Ending(why="could not be reached; it is tried again in ten minutes", avoid_s=600.0),
    exit_codes.TEMPORARY: Ending(why="could not go on here; it is tried again in a minute", avoid_s=60.0),
    exit_codes.MACHINE: Ending(why="cannot use this machine; it is left for an hour", avoid_s=3_600.0),
    exit_codes.CONFIGURATION: Ending(why="does not fit your settings; it is left for an hour", avoid_s=3_600.0),
    exit_codes.UPDATE_REQUIRED: Ending(why="needs a newer p2prl (p2prl update); left for a day", avoid_s=86_400.0),
}

_UNKNOWN = Ending(why="ended its worker with an error; it is tried again in five minutes", avoid_s=300.0)


@dataclass(slots=True)
class Serving:
    """The run that the machine serves now."""

    run: str
    name: str
    since: float
    first_group_s: float | None = None
    """Seconds from the start to the first group; None before it."""
    was_listed: bool = False
    listed_beside: int = 0
    """Listings of the newest look that still showed it, itself included."""
    unlisted_since: float | None = None
    gone_at: float | None = None
    """When it counts as gone, while it is not listed."""
    out_of_reach_since: float | None = None
    delivers_only: bool = False
    """Whether it was taken for the groups that wait here to be delivered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """What a worker reports."""

    groups: int
    """Groups that it has sampled since its start."""
    waiting: int
    """Groups on disk that no learner has confirmed."""
    in_reach: bool
    """Whether the learner is."""


@dataclass(slots=True)
class Rotation:
    """State of a machine that takes any run."""

    draw: Callable[[], float]
    """A number uniform on [0, 1)."""
    serving: Serving | None = None
    avoided: dict[str, Avoidance] = field(default_factory=dict)
    _visited: dict[str, float] = field(default_factory=dict)
    _empty_since: dict[str, float] = field(default_factory=dict)
    _failures: int = 0
    _target: str = ""
    """The run for which the machine leaves the one that it serves; empty where it leaves for none in particular."""

    def offers(
        self,
        listed: Sequence[tuple[OpenedListing, int]],
        machine: Machine,
        wishes: Wishes,
        faults: Mapping[str, str],
        now: float,
    ) -> list[Offer]:
        """The listed runs with their crowds, as this machine sees them. `faults` say by run why one is refused."""
        self.avoided = {run: each for run, each in self.avoided.items() if each.until > now}
        found = []
        for opened, crowd in listed:
            run = run_id(opened.run)
            why = faults.get(run, "") or left_out(opened, machine, wishes)
            if not why and run in self.avoided:
                why = f"it {self.avoided[run].why}"
            found.append(Offer(opened, crowd, why))
        return found

    def next(self, offers: Sequence[Offer], wishes: Wishes, waiting: Collection[str], now: float) -> Offer | None:
        """The run to take now. `waiting` are runs with groups here that wait for their learner: those come first, then
        the one for which the machine has left another."""
        visits = [offer for offer in offers if self._may_visit(offer, waiting, now)]
        targets = [offer for offer in offers if offer.run == self._target and not offer.left_out]
        self._target = ""
        firsts = visits or targets
        chosen = firsts[0] if firsts else choose(offers, wishes, self.draw())
        if chosen is not None:
            self.serving = Serving(
                chosen.run, chosen.opened.listing.name, now, was_listed=True, delivers_only=bool(visits)
            )
            if visits:
                self._visited[chosen.run] = now
        return chosen

    def begin(self, run: str, name: str, now: float) -> None:
        """A worker is started for a run that the owner named."""
        self.serving = Serving(run, name, now)

    def leaves(
        self, offers: Sequence[Offer] | None, wishes: Wishes, seen: Seen, waiting: Collection[str], now: float
    ) -> str:
        """Why the machine leaves the run that it serves, as the end of a sentence that begins with the run's name;
        empty to stay. `offers` are None while no index answers."""
        serving = self.serving
        assert serving is not None
        self._target = ""
        self._note(serving, seen, now)
        if offers is None:
            return ""
        alone = [offer.run for offer in offers if offer.volunteers == 0 and not offer.left_out]
        self._empty_since = {run: self._empty_since.get(run, now) for run in alone}
        current = next((offer for offer in offers if offer.run == serving.run), None)
        others = [offer for offer in offers if offer.run != serving.run and not offer.left_out]
        serving.was_listed |= current is not None
        serving.unlisted_since = None if current is not None else (serving.unlisted_since or now)
        if current is not None:
            serving.listed_beside = len(offers)
        if current is not None and current.left_out.startswith("you have blocked"):
            return f"is left: {current.left_out}"
        if not others:
            return ""
        if current is None:
            forgotten = 2 * len(offers) < serving.listed_beside
            serving.gone_at = (serving.unlisted_since or now) + (FORGOTTEN_S if forgotten else DELISTED_S)
            return "is not listed any more" if serving.was_listed and now >= serving.gone_at else ""
        if current.left_out:
            return f"is left: {current.left_out}"
        if serving.out_of_reach_since is not None and now - serving.out_of_reach_since >= QUIET_S:
            self.avoided[serving.run] = Avoidance(now + 2 * QUIET_S, "was out of reach for five minutes")
            return "has been out of reach for five minutes"
        if serving.delivers_only and seen.waiting == 0:
            serving.delivers_only = False  # delivered: from here on it is a run as any other
        if self._has_stayed(serving, now, is_urgent=True) and any(
            self._may_visit(offer, waiting, now) for offer in others
        ):
            return "waits while this machine delivers what another run has not received yet"
        if not self._has_stayed(serving, now, is_urgent=any(offer.volunteers == 0 for offer in others)):
            return ""
        empty = [run for run, since in self._empty_since.items() if now - since <= EMPTY_S]
        target = moved(current, offers, wishes, (self.draw(), self.draw()), empty=empty)
        if target is None:
            return ""
        self._target = target.run
        # Its learner had all groups but the newest, whose confirmation did not wait: they bring nobody back at once.
        self._visited[serving.run] = now
        return f"has {counted(current.volunteers, 'volunteer')} of {current.wanted} it wants, and others have fewer"

    def look_again_in(self, now: float) -> float | None:
        """Seconds until the run that is served counts as gone unless it is listed again; None where it does not go."""
        serving = self.serving
        if serving is None or serving.unlisted_since is None or not serving.was_listed:
            return None
        return None if serving.gone_at is None or serving.gone_at <= now else serving.gone_at - now

    def ended(self, code: int, *, excluded: bool, found_right: bool = False, now: float) -> Ending:
        """The worker has ended by itself, with this exit code. `excluded` says that its key was, and `found_right` that
        a replay of its own contradicts the learner's refusals."""
        serving, self.serving = self.serving, None
        assert serving is not None
        ending = _ENDINGS.get(code, _UNKNOWN)
        if excluded and code == exit_codes.MACHINE:
            ending = _EXCLUDED
        elif found_right and code == exit_codes.WORK_REFUSED:
            ending = _REFUSES_RIGHT_WORK
        self.avoided[serving.run] = Avoidance(now + ending.avoid_s, ending.why)
        is_fault = code in _MACHINE_FAULTS and serving.first_group_s is None
        self._failures = self._failures + 1 if is_fault else 0
        return ending

    @property
    def is_hopeless(self) -> bool:
        """Whether enough runs failed here to expect it of the next one too."""
        return self._failures >= FAILURES_TO_END

    def left(self) -> None:
        """The worker has ended because the machine goes on to another run."""
        self.serving = None

    def _note(self, serving: Serving, seen: Seen, now: float) -> None:
        if seen.groups and serving.first_group_s is None:
            serving.first_group_s = now - serving.since
            self._failures = 0
        reached = seen.in_reach or serving.first_group_s is None  # a start has its own limits of time
        serving.out_of_reach_since = None if reached else (serving.out_of_reach_since or now)

    def _has_stayed(self, serving: Serving, now: float, *, is_urgent: bool) -> bool:
        """Whether it has served long enough for what its start cost; it is urgent where a run has nobody at all."""
        if serving.first_group_s is None or serving.delivers_only:
            return False
        first = serving.since + serving.first_group_s
        return now - first >= max(LEAST_STAY_S, 0.0 if is_urgent else STAY_PER_START * serving.first_group_s)

    def _may_visit(self, offer: Offer, waiting: Collection[str], now: float) -> bool:
        last = self._visited.get(offer.run)
        is_due = last is None or now - last >= VISIT_AGAIN_S
        return offer.run in waiting and not offer.left_out and is_due
