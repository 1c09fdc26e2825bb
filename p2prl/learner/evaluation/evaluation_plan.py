"""Plan of evaluations: their settings, which version is next, the size of a slice, and whether there is time. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from p2prl.errors import require

MAX_PROMPTS = 100_000
"""Prompts of one evaluation: a standard error of .0016, and their token ids are held in memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """What is measured, how often, and how much time it may take."""

    every: int = 10
    """Versions between two evaluations; 0 turns them off. The first version and the last are always measured. One that
    is due while another is in progress is skipped, and the learner says so, unless `always` is set."""
    always: bool = False
    """Measure each version that is due, in turn, whatever time it takes: groups wait for their replay meanwhile."""
    prompts: int = 128
    """Prompts of each task: held-out rows of a data task, fresh prompts of a procedural one. Fewer where there are
    fewer. 128 give an interval of about ±.09."""
    samples: int = 4
    """k: samples of each prompt for pass@k, at the run's temperature, beside the greedy completion. 0 for none."""
    time_share: float = 0.05
    """Most time to spend on it while groups wait for their replay or an update is due, as a share of the time since
    the learner started. Time in which the learner would only wait for volunteers does not count."""
    pass_above: float | None = None
    """Score above which a completion passes. Default: half of what the task's scorers can give."""

    def __post_init__(self) -> None:
        require("every", self.every, self.every >= 0, "0 or more")
        require("prompts", self.prompts, 1 <= self.prompts <= MAX_PROMPTS, f"within 1..{MAX_PROMPTS}")
        require("samples", self.samples, 0 <= self.samples <= 1024, "within 0..1024")
        require("time_share", self.time_share, 0.0 < self.time_share <= 1.0, "above 0, up to 1")


_SLICE_S = 2.0
"""Time a slice should take: groups wait for their replay that long at most, and loading weights is a small part."""

_MOST_PROMPTS = 64
"""Prompts of one slice, whatever their speed: it bounds the memory of the completions in flight."""


def version_due(
    newest: int, evaluated: Iterable[int], *, every: int, finished: bool, always: bool = False
) -> int | None:
    """The version to measure, or None. `newest` is −1 before the first; `every` 0 means that none is.

    The newest version is measured: an older one has nothing to say about the policy that is trained. With `always`, the
    first that has not been measured since it was due.
    """
    if newest < 0 or every == 0:
        return None
    last = max(evaluated, default=None)
    if always and last is not None and newest >= last + every:
        return last + every
    if last is None or newest >= last + every or (finished and newest > last):
        return newest
    return None


class SliceSize:
    """Prompts of the next slice, so that it takes about `_SLICE_S`: doubled at most, from one prompt on."""

    def __init__(self) -> None:
        self._prompts = 1

    @property
    def prompts(self) -> int:
        """Prompts of the next slice; at least 1."""
        return self._prompts

    def took(self, prompts: int, seconds: float) -> None:
        """A slice of `prompts` prompts took this long."""
        fitting = _MOST_PROMPTS if seconds <= 0.0 else int(_SLICE_S * prompts / seconds)
        self._prompts = max(1, min(2 * prompts, fitting, _MOST_PROMPTS))


class TimeShare:
    """Time spent on evaluations, kept below a share of all time."""

    def __init__(self, share: float, *, now: float) -> None:
        self._share = share
        self._began = now
        self._spent = 0.0

    def allows(self, now: float) -> bool:
        """Whether a slice may begin although there is other work."""
        return self._spent <= self._share * (now - self._began)

    def spend(self, seconds: float) -> None:
        """A slice took this long while there was other work."""
        self._spent += seconds
