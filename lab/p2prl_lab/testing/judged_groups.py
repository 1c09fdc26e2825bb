"""Judge completions as a learner does: replayed from the same weight bytes, by the rules of `replay_statistics`.

For checks of engines, whose rounding in bfloat16 changes tokens that a wrong engine would change too. The rules credit
tokens, and look at log-probs softly; here these are known without rounding, and their noise has to fit the number type
as at a volunteer's self-test, so that a wrong temperature shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from p2prl.models.replay_statistics.baselines import NoiseEvidence
from p2prl.models.replay_statistics.judge import TokenScores, judge_group
from p2prl.models.replay_statistics.noise import NoiseScale, noise_scale, widest_scale
from p2prl.models.sampler_port import Generation, GenerationRequest
from p2prl.models.scorer_port import Scorer

GROUP = 8
"""Completions of a group, at one temperature."""

_NOISY = "log-probs noisier than the number type"


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedGroups:
    """Result over all groups."""

    groups: int
    rejected: tuple[str, ...]
    """Reasons, one for each rejected group."""
    tokens: int
    differing: int
    worst_margin: float
    worst_logprob: float
    """Largest difference of a log-prob."""

    def __str__(self) -> str:
        """One sentence."""
        refused = f"{len(self.rejected)} of {self.groups} groups rejected"
        reasons = f" ({', '.join(sorted(set(self.rejected)))})" if self.rejected else ""
        return (
            f"{refused}{reasons}; {self.differing:,} of {self.tokens:,} tokens differ from the replay (largest margin "
            f"{self.worst_margin:.1e}); log-probs differ by at most {self.worst_logprob:.1e}."
        )


def replayed(scorer: Scorer, asked: Sequence[GenerationRequest], made: Sequence[Generation]) -> list[TokenScores]:
    """Completions as `scorer` sees them, which holds their policy."""
    rows = scorer.replay(asked, [generation.token_ids for generation in made])
    return [
        TokenScores(
            margins=np.asarray(row.margins, np.float64),
            logprobs=np.asarray(row.logprobs, np.float64),
            best_logprobs=np.asarray(row.best_logprobs, np.float64),
            sizes=np.asarray(row.sizes, np.float64),
            claimed=np.asarray(generation.logprobs, np.float64),
        )
        for row, generation in zip(rows, made, strict=True)
    ]


def judge(rows: Sequence[TokenScores], asked: Sequence[GenerationRequest], *, dtype: str, layers: int) -> JudgedGroups:
    """Judge completions in groups of `GROUP`, in order. `dtype` is the run's, which sampler and scorer compute in."""
    scale = noise_scale(claimed_dtype=dtype, run_dtype=dtype, scorer_dtype=dtype, layers=layers)
    judged = []
    for first in range(0, len(rows), GROUP):
        tokens, temperature = _joined(rows[first : first + GROUP]), asked[first].temperature
        group = judge_group(tokens, scale, widest_scale(layers), temperature)
        judged.append(group if group.reason or fits(tokens, scale, temperature) else replace(group, reason=_NOISY))
    everything = _joined(rows)
    return JudgedGroups(
        groups=len(judged),
        rejected=tuple(str(group.reason) for group in judged if group.reason),
        tokens=int(everything.margins.size),
        differing=sum(group.mismatched for group in judged),
        worst_margin=float(everything.margins.max()),
        worst_logprob=float(np.abs(everything.claimed - everything.logprobs).max()),
    )


def fits(tokens: TokenScores, scale: NoiseScale, temperature: float) -> bool:
    """Whether the noise of the log-probs is that of the number type."""
    spread = NoiseEvidence.of(tokens, temperature).spread
    allowed = float(np.sqrt(np.mean(scale.of_rows(tokens.sizes, temperature) ** 2))) * temperature
    return float(np.sum(np.abs(tokens.claimed - tokens.logprobs))) <= allowed * spread


def _joined(rows: Sequence[TokenScores]) -> TokenScores:
    names = [each.name for each in fields(TokenScores)]
    return TokenScores(**{name: np.concatenate([getattr(row, name) for row in rows]) for name in names})
