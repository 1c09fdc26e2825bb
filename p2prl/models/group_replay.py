"""Replay of rollout groups: one batched prefill at the declared policy, compared token by token with the seeded draws.

The expensive half of a check; `GroupWork.inspect` is the cheap one and runs first. `replay_statistics` judges the
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2prl.models.group_work import Inspection
from p2prl.models.replay_noise import Floats, noise_scale
from p2prl.models.replay_statistics import TokenScores, judge_tokens
from p2prl.models.scorer_port import Scored, Scorer
from p2prl.protocol.rollout_group import RolloutGroup


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of replaying one group. `reason` is empty when the group passed."""

    reason: str
    behavior_logprobs: tuple[tuple[float, ...], ...]
    """The policy's own log-probs of the tokens, at the sampling temperature: what the learner trains with."""
    mismatched: int
    tokens: int
    worst_margin: float


def replay_groups(scorer: Scorer, work: Sequence[tuple[RolloutGroup, Inspection]], *, run_dtype: str) -> list[Replay]:
    """Replay groups of the policy that `scorer` holds, in one batched prefill.

    `run_dtype` is the dtype the run computes in. The dtype a group claims can only narrow the tolerance, because a
    cheat would claim the most tolerant one.
    """
    requests = [request for _, inspection in work for request in inspection.assignment.requests]
    token_ids = [ids for _, inspection in work for ids in inspection.token_ids]
    scored = iter(scorer.replay(requests, token_ids))
    results = []
    for group, inspection in work:
        rows = [next(scored) for _ in inspection.token_ids]
        tokens = _token_scores(group, rows)
        scale = noise_scale(
            claimed_dtype=group.engine.dtype,
            run_dtype=run_dtype,
            scorer_dtype=scorer.engine_class.dtype,
            layers=scorer.layers,
        )
        judged = judge_tokens(tokens, scale, inspection.assignment.requests[0].temperature)
        behavior = tuple(tuple(row.logprobs) for row in rows)
        size = int(tokens.margins.size)
        results.append(Replay(judged.reason, behavior, judged.mismatched, size, judged.worst_margin))
    return results


def _token_scores(group: RolloutGroup, rows: Sequence[Scored]) -> TokenScores:
    return TokenScores(
        margins=_joined([row.margins for row in rows]),
        logprobs=_joined([row.logprobs for row in rows]),
        best_logprobs=_joined([row.best_logprobs for row in rows]),
        sizes=_joined([row.sizes for row in rows]),
        claimed=np.concatenate([np.frombuffer(c.logprobs, dtype="<f2").astype(np.float64) for c in group.completions]),
    )


def _joined(rows: Sequence[Sequence[float]]) -> Floats:
    return np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])
