"""Groups of small models of the project's own architecture, sampled with noise and judged through a real scorer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.groups.group_work import Inspection, SlotAssignment
from p2prl.models.replay.group_replay import Replay, replay_groups
from p2prl.models.sampler_port import GenerationRequest
from p2prl.models.sampling import sample_all
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import Completion, RolloutGroup

MODELS = ("chain4", "walk12")
NOISES = {"float32": (0.0, 1e-3), "bfloat16": (0.0, 0.05, 0.09)}
"""Noise added to the sampler's logits; in bfloat16 rounding adds its own."""

_GROUP_SIZE, _PROMPT_TOKENS, _NEW_TOKENS = 4, 6, 12

Work = tuple[RolloutGroup, Inspection]


@dataclass(frozen=True, kw_only=True)
class ModelRow:
    """One model, type, noise and temperature."""

    model: str
    dtype: str
    noise: float
    temperature: float
    groups: int
    tokens: int
    """Of a group."""
    rejected: int
    """Honest groups."""
    faults: int
    """Of these, with a reason that counts against their author."""
    mismatched: int
    """Honest tokens that are not the scorer's draw."""
    worst_margin: float
    """Of an honest token, nats."""
    invented: int
    """Groups with one random token more than a nat below the best."""
    credited: int
    """Of these."""


def model_rows(
    groups: int,
    seed: int = 0,
    temperatures: Sequence[float] = (0.6, 1.0, 1.5),
    *,
    dtypes: Sequence[str] = tuple(NOISES),
) -> Iterator[ModelRow]:
    """Every model, type, noise and temperature."""
    for name in MODELS:
        for dtype in dtypes:
            noises = NOISES[dtype]
            scored, sampled = _engine(name, dtype), _engine(name, dtype)
            scorer = TransformersScorer(scored)
            for noise in noises:
                generator = torch.Generator().manual_seed(seed)

                def add(_: object, __: object, logits: torch.Tensor) -> torch.Tensor:
                    return logits.float() + noise * torch.randn(logits.shape, generator=generator)  # noqa: B023

                hook = sampled.model.lm_head.register_forward_hook(add)
                for temperature in temperatures:
                    requests = _requests(groups, scored.vocabulary, temperature, seed)
                    work = _sampled(TransformersSampler(sampled), requests)
                    yield _row(name, dtype, noise, temperature, scorer, work, seed)
                hook.remove()


def _engine(name: str, dtype: str) -> PolicyModel:
    model = tiny_model(name, seed=1).model.to(getattr(torch, dtype))
    with torch.no_grad():
        model.lm_head.weight.mul_(2.0)  # tied to the embeddings: logits as large as those of a trained model
    return PolicyModel(model, layout_of(model, dtype))


def _row(
    name: str, dtype: str, noise: float, temperature: float, scorer: TransformersScorer, work: list[Work], seed: int
) -> ModelRow:
    honest = replay_groups(scorer, work, run_dtype=dtype)
    cheated = _invented(scorer, work, seed)
    judged = replay_groups(scorer, cheated, run_dtype=dtype) if cheated else []
    return ModelRow(
        model=name,
        dtype=dtype,
        noise=noise,
        temperature=temperature,
        groups=len(work),
        tokens=honest[0].tokens,
        rejected=sum(bool(replay.reason) for replay in honest),
        faults=sum(_is_fault(replay) for replay in honest),
        mismatched=sum(replay.mismatched for replay in honest),
        worst_margin=max(replay.worst_margin for replay in honest),
        invented=len(cheated),
        credited=sum(not replay.reason for replay in judged),
    )


def _is_fault(replay: Replay) -> bool:
    return replay.reason not in ("", RejectionReason.ENGINE_MISMATCH)


def _requests(groups: int, vocabulary: int, temperature: float, seed: int) -> list[GenerationRequest]:
    draws = random.Random(f"trust/{seed}")  # noqa: S311 - not secret
    requests = []
    for _ in range(groups):
        prompt = tuple(draws.randrange(vocabulary) for _ in range(_PROMPT_TOKENS))
        requests += [
            GenerationRequest(
                prompt_ids=prompt, seed=draws.getrandbits(63), max_new_tokens=_NEW_TOKENS, temperature=temperature,
                stop_ids=frozenset(),
            )
            for _ in range(_GROUP_SIZE)
        ]  # fmt: skip
    return requests


def _sampled(sampler: TransformersSampler, requests: list[GenerationRequest]) -> list[Work]:
    made = sample_all(sampler, requests)
    work = []
    for start in range(0, len(requests), _GROUP_SIZE):
        part, of_group = made[start : start + _GROUP_SIZE], requests[start : start + _GROUP_SIZE]
        completions = tuple(_completion(each.token_ids, each.logprobs) for each in part)
        group = RolloutGroup(
            version=0, policy=bytes(32), slot=0, task="trust", prompt=bytes(4), completions=completions,
            engine=sampler.engine_class, seconds=0.0,
        )  # fmt: skip
        assignment = SlotAssignment(0, "trust", "", tuple(of_group))
        work.append((group, Inspection("", assignment, tuple(each.token_ids for each in part))))
    return work


def _completion(token_ids: Sequence[int], logprobs: Sequence[float]) -> Completion:
    return Completion(
        tokens=np.asarray(token_ids, dtype="<u4").tobytes(),
        logprobs=np.asarray(logprobs, dtype="<f2").tobytes(),
        finished=False,
        reward=0.0,
    )


def _invented(scorer: TransformersScorer, work: list[Work], seed: int) -> list[Work]:
    """Groups whose first completion ends in a random token more than a nat below the best, with its true log-probs."""
    draws = random.Random(f"invented/{seed}")  # noqa: S311 - not secret
    vocabulary = 18
    rows = [(*inspection.token_ids[0][:-1], draws.randrange(vocabulary)) for _, inspection in work]
    scored = scorer.replay([inspection.assignment.requests[0] for _, inspection in work], rows)
    cheated = []
    for (group, inspection), row, found in zip(work, rows, scored, strict=True):
        if found.margins[-1] <= 1.0:
            continue
        completions = (_completion(row, found.logprobs), *group.completions[1:])
        changed = RolloutGroup(
            version=0, policy=group.policy, slot=0, task=group.task, prompt=group.prompt, completions=completions,
            engine=group.engine, seconds=0.0,
        )  # fmt: skip
        cheated.append((changed, Inspection("", inspection.assignment, (row, *inspection.token_ids[1:]))))
    return cheated
