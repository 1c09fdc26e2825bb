"""Pace of updates: how long to wait before the next one, so that slow machines' groups are still fresh enough. Pure.

Staleness is counted in updates, so a learner that is much faster than its volunteers makes their work stale while they
sample it. Dropping that work would starve long, hard prompts; waiting a little keeps it.
"""

from __future__ import annotations

SAMPLING_SHARE = 0.5
"""Share of the staleness bound that sampling may take; the other half is for waiting at the learner."""


def pause_s(update_s: float, *, sampling_s: float, staleness_bound: int, limit: float) -> float:
    """Seconds to wait after an update that took `update_s`.

    Groups that are sampled in `sampling_s` shall be at most half the bound old when they arrive. `limit` is the longest
    wait as a share of `update_s`; without one, a single slow machine could stop a run.
    """
    wanted_s = sampling_s / max(1.0, SAMPLING_SHARE * staleness_bound)
    return min(max(0.0, wanted_s - update_s), limit * update_s)
