"""Replay of rollout groups: one batched prefill at the declared policy, compared token by token with the seeded draws.

The expensive half of a check; `GroupWork.inspect` is the cheap one and runs first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2prl.models.group_work import Inspection
from p2prl.models.scorer_port import Scorer
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import RolloutGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Tolerance:
    """Largest deviation of an honest engine from the replay, for one dtype."""

    margin: float
    """A token whose noisy logit is this far below the best one counts as mismatched, nats."""
    mismatched_share: float
    """Share of mismatched tokens above which a group fails."""
    logprob: float
    """Mean |claimed − replayed| log-prob above which a group fails, nats per token."""


TOLERANCES = {
    "float32": Tolerance(margin=1e-3, mismatched_share=0.0, logprob=0.02),
    "bfloat16": Tolerance(margin=0.1, mismatched_share=0.03, logprob=0.05),
    "float16": Tolerance(margin=0.03, mismatched_share=0.02, logprob=0.03),
}
"""In fp32 an honest margin is 0 up to rounding; in bf16 .7 % of tokens flip between engines, with margins below .1."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of replaying one group. `reason` is empty when the group passed."""

    reason: str
    behavior_logprobs: tuple[tuple[float, ...], ...]
    """The policy's own log-probs of the tokens, at the sampling temperature: what the learner trains with."""
    mismatched: int
    tokens: int
    worst_margin: float


def replay_groups(scorer: Scorer, work: Sequence[tuple[RolloutGroup, Inspection]]) -> list[Replay]:
    """Replay groups of the policy that `scorer` holds, in one batched prefill.

    The tolerance is that of the dtype this scorer computes in, which is the run's. The dtype a group claims is ignored,
    because a cheat would claim the most tolerant one.
    """
    tolerance = TOLERANCES[scorer.engine_class.dtype]
    requests = [request for _, inspection in work for request in inspection.assignment.requests]
    token_ids = [ids for _, inspection in work for ids in inspection.token_ids]
    scored = iter(scorer.replay(requests, token_ids))
    results = []
    for group, inspection in work:
        rows = [next(scored) for _ in inspection.token_ids]
        margins = np.concatenate([np.asarray(row.margins, dtype=np.float64) for row in rows])
        behavior = tuple(tuple(row.logprobs) for row in rows)
        claimed = np.concatenate([np.frombuffer(c.logprobs, dtype="<f2").astype(np.float64) for c in group.completions])
        own = np.concatenate([np.asarray(row, dtype=np.float64) for row in behavior])
        mismatched = int(np.count_nonzero(~(margins <= tolerance.margin)))
        reason = ""
        if mismatched > tolerance.mismatched_share * margins.size:
            reason = RejectionReason.SEED_MISMATCH
        elif not float(np.mean(np.abs(claimed - own))) <= tolerance.logprob:
            reason = RejectionReason.LOGPROB_MISMATCH
        results.append(Replay(reason, behavior, mismatched, int(margins.size), float(np.max(margins))))
    return results
