"""Score above which a completion passes: more than half of what a task's scorers can give. Pure.

A procedural task's score ends at 1. A data task's is a weighted sum: with `number` at 1 and `format` at .1, a right
answer in the wrong form passes and a wrong answer in the right form does not. Half of the sum of the positive weights
decides that for any weights; penalties are left out, since no answer gains by them.
"""

from __future__ import annotations

import json

_HALF = 0.5


def pass_threshold(scoring: str | None) -> float:
    """The threshold of a data task's scoring (`p2prl/tasks/scorers/spec.py`); of a procedural task for None."""
    if scoring is None:
        return _HALF
    rewards = json.loads(scoring)["rewards"]
    return _HALF * sum(max(0.0, float(reward.get("weight", 1.0))) for reward in rewards)
