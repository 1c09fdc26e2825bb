"""The reward text of a run manifest, as far as peers without torch read it: whether a reward model has a part in it."""

from __future__ import annotations

import re

_MODEL = re.compile(r".*@([0-9a-f]{32})")


def reward_model_of(reward: str) -> str:
    """Beginning of the digest of the reward model that the learner alone has, hex.

    Empty where there is none, so that anyone can recompute a reward. `algorithms/reward_spec.py` reads the rest.
    """
    found = _MODEL.fullmatch(reward)
    return found[1] if found else ""
