"""Parser of the reward text in a run manifest: `success+0.2*process:clip+delta`.

Every peer that scores a completion uses the same text, so anyone can recompute a reward
(`p2prl/models/rewards/run_reward.py`). With the parts of a reward model the learner alone can, and the text ends with
the model's digest.
"""

from __future__ import annotations

import math
import re

from p2prl.algorithms.process_rewards import RewardConfig
from p2prl.errors import ConfigError

_PARTS = ("success", "outcome", "process", "orm", "prm")
_MODEL_PARTS = ("orm", "prm")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_REFINEMENTS = {"": (False, False), ":clip": (True, False), ":delta": (False, True), ":clip+delta": (True, True)}
MAX_WEIGHT = 1000.0
"""Above it one part would hide the others in float32; a larger number is a typing error."""


def parse_reward(text: str) -> RewardConfig:
    """Parse a reward; ConfigError on an invalid one.

    Parts are joined by `+`, each at most once, `success` among them: `success` (the task's verdict), `outcome` and
    `process` (the scores of the task's process scorer; process scores are summed over a completion's steps). A part
    may have a factor, `0.2*process`; without one it is 1. `process` is raw, `process:clip`, `process:delta` and
    `process:clip+delta` are refined (`process_rewards.clip_steps`, `delta_steps`).

    In the place of these scores a reward model's may stand: `orm` scores a whole completion, `prm` its steps, refined
    as `process` is. `@` and the first 32 hex digits of the model's digest are then the end of the text.
    """
    weights: dict[str, float] = {}
    refinement = ""
    parts, _, model = text.partition("@")
    for piece in parts.split("+"):
        if piece == "delta" and refinement == ":clip" and list(weights)[-1] in ("process", "prm"):
            refinement = ":clip+delta"
            continue
        factor, star, name = piece.rpartition("*")
        part, colon, refined = name.partition(":")
        refined = colon + refined
        takes_refinement = part in ("process", "prm")
        if part not in _PARTS or part in weights or refined not in _REFINEMENTS or (colon and not takes_refinement):
            raise _unusable(text)
        weights[part] = _weight(factor, text) if star else 1.0
        refinement = refined or refinement
    of_model = [part for part in _MODEL_PARTS if part in weights]
    mixes_judges = len(of_model) > 1 or (of_model and len(weights) > 2)
    is_named = bool(_DIGEST.fullmatch(model)) if of_model else parts == text
    if "success" not in weights or mixes_judges or not is_named:
        raise _unusable(text)
    clip, delta = _REFINEMENTS[refinement]
    return RewardConfig(
        success_weight=weights["success"],
        outcome_weight=weights.get("outcome", 0.0) + weights.get("orm", 0.0),
        process_weight=weights.get("process", 0.0) + weights.get("prm", 0.0),
        clip=clip,
        delta=delta,
        model=model,
    )


def _weight(factor: str, text: str) -> float:
    # Digits and one point only: float() would also read nan, 1e999, underscores and the digits of other scripts.
    if not factor.isascii() or not factor.replace(".", "", 1).isdigit():
        raise _unusable(text)
    weight = float(factor)
    if not (math.isfinite(weight) and 0.0 < weight <= MAX_WEIGHT):
        raise _unusable(text)
    return weight


def _unusable(text: str) -> ConfigError:
    return ConfigError(
        f"reward = {text[:60]!r} is not valid",
        remedy="Write success, or for example success+0.2*process:clip+delta or success+outcome; with --reward-model "
        "success+orm or success+0.2*prm:clip+delta.",
    )
