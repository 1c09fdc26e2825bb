"""The pairs benchmark: groups sampled by one engine, replayed and judged by another, honest and with one edited token.

Each sampler decodes its groups in batches of 1 to 32 rows. An edited group is an honest one with another last token,
more than a nat below the best. Some random tokens are tried in each group, and those with the smallest such margins are
judged: they are the hardest to find. Their log-probs are the scorer's own, so that only the margin gives them away.

With another device than the CPU, every engine samples and scores on both: a validator's processor replays what a
volunteer's GPU sampled, and the reverse.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from p2prl.bench.device_time import CPU
from p2prl.bench.engine_pairs.engines import VOCABULARY, VllmEngines, engine, engines_on, model_of_spread
from p2prl.errors import require
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.groups.group_work import Inspection, SlotAssignment
from p2prl.models.replay.group_replay import replay_groups
from p2prl.models.sampler_port import Generation, GenerationRequest, Sampler
from p2prl.models.sampling import sample_all
from p2prl.models.scorer_port import Scored
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup

DTYPES = ("float32", "bfloat16")
TEMPERATURES = (1.0, 0.6)
SPREADS = (3.0, 6.0, 18.0)
"""Standard deviation of the logits over the vocabulary: small, usual and large language models."""

EDITED_MARGIN = 1.0
"""Nats below the best from which an edited token must be found."""

_BATCHES = (32, 32, 32, 16, 8, 4, 2, 1)
_GROUP_SIZE, _PROMPT_TOKENS, _NEW_TOKENS = 2, 8, 16
_MOST_EDITED, _CANDIDATES = 24, 4


@dataclass(frozen=True, kw_only=True)
class PairsConfig:
    """Number of honest groups of each pair, and the models."""

    groups: int = 500
    spreads: tuple[float, ...] = SPREADS
    device: torch.device = CPU
    seed: int = 0

    def __post_init__(self) -> None:
        require("groups", self.groups, 2 <= self.groups <= 100_000, "2 to 100000")
        require("spreads", self.spreads, all(0.0 < spread <= 100.0 for spread in self.spreads), "above 0, at most 100")


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """One sampler against one scorer. It has this many fields because each is a column of the table."""

    sampler: str
    scorer: str
    dtype: str
    temperature: float
    spread: float
    groups: int
    tokens: int
    rejected: int
    """Honest groups that were rejected."""
    mismatched: int
    """Honest tokens that are not the scorer's draw."""
    worst_margin: float
    """Of an honest token, nats."""
    edited: int
    edited_found: bool
    """Whether every edited group was rejected."""
    smallest_edit: float
    """Smallest margin of an edited token, nats."""
    largest_missed: float
    """Largest margin of an edited token that passed, nats; 0 if all were found."""

    @property
    def met(self) -> bool:
        """No honest group rejected, and every edited one."""
        return self.rejected == 0 and self.edited_found


def run_pairs_bench(
    config: PairsConfig, *, on_progress: Callable[[str, float], None] | None = None
) -> list[PairResult]:
    """Every sampler against every scorer."""
    results = []
    vllm = VllmEngines(config.device)
    cases = list(itertools.product(config.spreads, DTYPES, TEMPERATURES))
    for number, (spread, dtype, temperature) in enumerate(cases):
        model = model_of_spread(spread, config.seed)
        engines = {shown: engine(name, model, dtype, device) for shown, name, device in engines_on(config.device)}
        for sampler in (*engines, *vllm.names):
            if on_progress is not None:
                on_progress(f"{sampler}, {dtype}, T = {temperature}, spread {spread:g}", number / len(cases))
            made = TransformersSampler(engines[sampler]) if sampler in engines else vllm.sampler(model, dtype)
            work = _sampled(made, _requests(config, temperature))
            for scorer, policy in engines.items():
                found = _judged(TransformersScorer(policy), work, dtype, config.seed)
                results.append(replace(found, sampler=sampler, scorer=scorer, temperature=temperature, spread=spread))
    return results


def _requests(config: PairsConfig, temperature: float) -> list[GenerationRequest]:
    draws = random.Random(f"pairs/{config.seed}")  # noqa: S311 - not secret
    requests = []
    for _ in range(config.groups):
        prompt = tuple(draws.randrange(VOCABULARY) for _ in range(_PROMPT_TOKENS))
        requests += [
            GenerationRequest(
                prompt_ids=prompt,
                seed=draws.getrandbits(63),
                max_new_tokens=_NEW_TOKENS,
                temperature=temperature,
                stop_ids=frozenset(),
            )
            for _ in range(_GROUP_SIZE)
        ]
    return requests


def _sampled(sampler: Sampler, requests: list[GenerationRequest]) -> list[tuple[RolloutGroup, Inspection]]:
    """Groups of the requests, decoded in batches of all sizes."""
    made: list[Generation] = []
    sizes = itertools.cycle(_BATCHES)
    while len(made) < len(requests):
        made += sample_all(sampler, requests[len(made) : len(made) + next(sizes)])
    pairs = list(zip(requests, made, strict=True))
    return [
        _group(pairs[start : start + _GROUP_SIZE], sampler.engine_class) for start in range(0, len(pairs), _GROUP_SIZE)
    ]


def _group(
    rows: Sequence[tuple[GenerationRequest, Generation]], engine_class: EngineClass
) -> tuple[RolloutGroup, Inspection]:
    completions = tuple(_completion(made.token_ids, made.logprobs) for _, made in rows)
    requests = tuple(request for request, _ in rows)
    prompt = np.asarray(requests[0].prompt_ids, dtype="<u4").tobytes()
    group = RolloutGroup(
        version=0, policy=bytes(32), slot=0, task="pairs", prompt=prompt, completions=completions,
        engine=engine_class, seconds=0.0,
    )  # fmt: skip
    return group, Inspection("", SlotAssignment(0, "pairs", "", requests), tuple(m.token_ids for _, m in rows))


def _completion(token_ids: Sequence[int], logprobs: Sequence[float]) -> Completion:
    return Completion(
        tokens=np.asarray(token_ids, dtype="<u4").tobytes(),
        logprobs=np.asarray(logprobs, dtype="<f2").tobytes(),
        finished=False,
        reward=0.0,
    )


def _judged(
    scorer: TransformersScorer, work: list[tuple[RolloutGroup, Inspection]], dtype: str, seed: int
) -> PairResult:
    """The figures of one pair; its names are filled in by the caller."""
    honest = replay_groups(scorer, work, run_dtype=dtype)
    edited = replay_groups(scorer, _edited(scorer, work, seed), run_dtype=dtype)
    return PairResult(
        sampler="", scorer="", dtype=dtype, temperature=0.0, spread=0.0,
        groups=len(work),
        tokens=sum(replay.tokens for replay in honest),
        rejected=sum(bool(replay.reason) for replay in honest),
        mismatched=sum(replay.mismatched for replay in honest),
        worst_margin=max(replay.worst_margin for replay in honest),
        edited=len(edited),
        edited_found=bool(edited) and all(replay.reason for replay in edited),
        smallest_edit=min((replay.worst_margin for replay in edited), default=0.0),
        largest_missed=max((replay.worst_margin for replay in edited if not replay.reason), default=0.0),
    )  # fmt: skip


def _edited(
    scorer: TransformersScorer, work: list[tuple[RolloutGroup, Inspection]], seed: int
) -> list[tuple[RolloutGroup, Inspection]]:
    """The groups whose last token can be replaced by one just over `EDITED_MARGIN` below the best, with that token."""
    draws = random.Random(f"edits/{seed}")  # noqa: S311 - not secret
    candidates = [
        (group, inspection, (*inspection.token_ids[0][:-1], draws.randrange(VOCABULARY)))
        for group, inspection in work
        for _ in range(_CANDIDATES)
    ]
    requests = [inspection.assignment.requests[0] for _, inspection, _ in candidates]
    scored = scorer.replay(requests, [row for _, _, row in candidates])
    far = [(made, candidate) for made, candidate in zip(scored, candidates, strict=True) if _is_far(made)]
    far.sort(key=lambda entry: entry[0].margins[-1])
    return [_with_first_row(*candidate, made.logprobs) for made, candidate in far[:_MOST_EDITED]]


def _is_far(made: Scored) -> bool:
    return made.margins[-1] > EDITED_MARGIN


def _with_first_row(
    group: RolloutGroup, inspection: Inspection, row: tuple[int, ...], logprobs: Sequence[float]
) -> tuple[RolloutGroup, Inspection]:
    """The group with other tokens and log-probs in its first completion."""
    completions = (_completion(row, logprobs), *group.completions[1:])
    changed = RolloutGroup(
        version=0, policy=group.policy, slot=0, task=group.task, prompt=group.prompt, completions=completions,
        engine=group.engine, seconds=0.0,
    )  # fmt: skip
    return changed, Inspection("", inspection.assignment, (row, *inspection.token_ids[1:]))
