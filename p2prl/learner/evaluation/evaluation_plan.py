"""Plan of evaluations: which version is measured next, the size of a slice, and whether there is time for one. Pure."""

from __future__ import annotations

from collections.abc import Iterable

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
