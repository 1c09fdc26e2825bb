"""Replay of rollout groups: one batched prefill at the declared policy, compared token by token with the seeded draws.

The expensive half of a check; `GroupWork.inspect` is the cheap one and runs first. `replay_statistics` judges the
tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from p2prl.models.groups.group_work import Inspection
from p2prl.models.replay.prefix_replay import ImpossibleToken, impossible_token
from p2prl.models.replay.probes import ReplayProbes, probes_of
from p2prl.models.replay_statistics.baselines import NoiseEvidence, Pair, own_band
from p2prl.models.replay_statistics.judge import TokenScores, judge_group
from p2prl.models.replay_statistics.noise import Floats, noise_scale, widest_scale
from p2prl.models.scorer_port import Scored, Scorer
from p2prl.protocol.rollout_group import RolloutGroup

Sampled = npt.NDArray[np.bool_]
"""For each token of a group, whether the policy sampled it."""


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of replaying one group. `reason` is empty when the group passed."""

    reason: str
    behavior_logprobs: tuple[tuple[float, ...], ...]
    """The policy's own log-probs of the tokens, at the sampling temperature: what the learner trains with. Not a number
    at the tokens of an environment, which no policy sampled."""
    mismatched: int
    tokens: int
    """Tokens that the policy sampled."""
    worst_margin: float
    pair: Pair
    """The class that the group declares, and the scorer's."""
    evidence: NoiseEvidence
    """Of the pair's noise."""
    impossible: ImpossibleToken | None = None
    """In a group that failed, a token that no honest engine samples, if there is one."""
    probes: ReplayProbes | None = None
    """Log-probs that verdicts on the group are checked with, when they were asked for."""


def not_measured(pair: Pair) -> None:
    """The noise of a pair where nothing was measured."""
    del pair


def replay_groups(
    scorer: Scorer,
    work: Sequence[tuple[RolloutGroup, Inspection]],
    *,
    run_dtype: str,
    measured: Callable[[Pair], float | None] = not_measured,
    candidates: Sequence[Sequence[tuple[int, ...]]] = (),
) -> list[Replay]:
    """Replay groups of the policy that `scorer` holds, in one batched prefill.

    `candidates`, if given, are those of each group, for `Replay.probes`.

    `run_dtype` is the dtype the run computes in. The dtype a group claims can only narrow the tolerance, because a
    cheat would claim the most tolerant one. `measured` gives the noise of a pair of classes (`NoiseBaselines`).
    """
    requests = [request for _, inspection in work for request in inspection.assignment.requests]
    token_ids = [ids for _, inspection in work for ids in inspection.token_ids]
    scored = iter(scorer.replay(requests, token_ids, [tokens for rows in candidates for tokens in rows]))
    results = []
    widest = widest_scale(scorer.layers)
    # Once a batch: a pair may have thousands of peers.
    noises = {engine: measured((engine, scorer.engine_class)) for engine in {group.engine for group, _ in work}}
    for group, inspection in work:
        rows = [next(scored) for _ in inspection.token_ids]
        sampled = _sampled(inspection)
        tokens = _token_scores(group, rows, sampled)
        temperature = inspection.assignment.requests[0].temperature
        band = noises[group.engine]
        pair = (group.engine, scorer.engine_class)
        scale = noise_scale(
            claimed_dtype=group.engine.dtype,
            run_dtype=run_dtype,
            scorer_dtype=scorer.engine_class.dtype,
            layers=scorer.layers,
            measured=own_band(tokens, temperature) if band is None else band,
        )
        judged = judge_group(tokens, scale, widest, temperature)
        replay = Replay(
            reason=judged.reason,
            behavior_logprobs=_behavior(rows, sampled),
            mismatched=judged.mismatched,
            tokens=int(tokens.margins.size),
            worst_margin=judged.worst_margin,
            pair=pair,
            evidence=NoiseEvidence.of(tokens, temperature),
            impossible=impossible_token(scorer, inspection, rows) if judged.reason else None,
            probes=_probes(scorer, rows, run_dtype, temperature),
        )
        results.append(replay)
    return results


def _probes(scorer: Scorer, rows: Sequence[Scored], run_dtype: str, temperature: float) -> ReplayProbes | None:
    """The probes of a group. Another scorer of the run may compute in any class that the run allows."""
    if not rows[0].probe_logprobs:
        return None
    dtype = scorer.engine_class.dtype
    scale = noise_scale(claimed_dtype=run_dtype, run_dtype=run_dtype, scorer_dtype=dtype, layers=scorer.layers)
    return probes_of(rows, scale, temperature)


def _token_scores(group: RolloutGroup, rows: Sequence[Scored], sampled: Sampled) -> TokenScores:
    """The scores of the tokens that the policy sampled."""
    claimed = np.concatenate([np.frombuffer(c.logprobs, dtype="<f2").astype(np.float64) for c in group.completions])
    return TokenScores(
        margins=_joined([row.margins for row in rows])[sampled],
        logprobs=_joined([row.logprobs for row in rows])[sampled],
        best_logprobs=_joined([row.best_logprobs for row in rows])[sampled],
        sizes=_joined([row.sizes for row in rows])[sampled],
        claimed=claimed[sampled],
    )


def _behavior(rows: Sequence[Scored], sampled: Sampled) -> tuple[tuple[float, ...], ...]:
    """See `Replay.behavior_logprobs`."""
    logprobs = np.where(sampled, _joined([row.logprobs for row in rows]), np.nan)
    ends = np.cumsum([len(row.logprobs) for row in rows])
    return tuple(tuple(part.tolist()) for part in np.split(logprobs, ends[:-1]))


def _sampled(inspection: Inspection) -> Sampled:
    """Which of a group's tokens the policy sampled: all in a task of one turn."""
    if not inspection.sampled:
        return np.ones(sum(map(len, inspection.token_ids)), dtype=np.bool_)
    return np.concatenate([np.asarray(row, dtype=np.bool_) for row in inspection.sampled])


def _joined(rows: Sequence[Sequence[float]]) -> Floats:
    return np.concatenate([np.asarray(row, dtype=np.float64) for row in rows])
