"""Evaluation of a policy: its mean reward on fresh prompts, with volunteers' sampling or greedily."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.models.groups.group_work import GroupWork, SlotAssignment
from p2prl.models.sampler_port import GenerationRequest, Sampler
from p2prl.models.sampling import GREEDY_TEMPERATURE, sample_all
from p2prl.protocol.digests import digest

_BATCH = 256
"""Prompts sampled in one call: enough to fill a device, few enough for progress to be reported."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of one evaluation."""

    reward: float
    """Mean reward, one completion per prompt."""
    standard_error: float
    prompts: int
    tokens_mean: float
    """Mean completion length, in tokens that the policy sampled."""


def evaluate(
    sampler: Sampler,
    work: GroupWork,
    *,
    prompts: int,
    seed: int,
    greedy: bool = False,
    on_progress: Callable[[float], None] | None = None,
) -> Evaluation:
    """Sample one completion for each of `prompts` fresh prompts under the sampler's weights and score them.

    Prompts come from the slots of a key that no peer can have, so training never sees them; a data task's come from its
    held-out rows, or from those trained on if it has none. The same `seed` gives the same prompts and draws. Prompts
    that do not fit the run are left out.
    """
    if prompts < 1:
        raise ConfigError(f"prompts must be at least 1, not {prompts}", remedy="Evaluate on a thousand or more.")
    nobody = digest("p2prl/evaluation-prompts/v1", seed.to_bytes(8, "little", signed=True))
    rewards: list[float] = []
    tokens = 0
    for start in range(0, prompts, _BATCH):
        assignments = []
        for slot in range(start, min(start + _BATCH, prompts)):
            with contextlib.suppress(RemoteProtocolError):  # too long for the run: no volunteer samples it either
                assignments.append(work.assign(beacon=nobody, peer=nobody, slot=slot, held_out=True))
        generations = sample_all(sampler, [_request(assignment, greedy) for assignment in assignments])
        for assignment, generation in zip(assignments, generations, strict=True):
            rewards += work.successes(assignment, [generation.token_ids])
            tokens += generation.sampled_tokens
        if on_progress is not None:
            on_progress(min(1.0, (start + _BATCH) / prompts))
    count = len(rewards)
    if not count:
        raise ConfigError(
            f"none of {prompts} prompts fits the model's context", remedy="Evaluate a run with shorter prompts."
        )
    mean = sum(rewards) / count
    variance = sum((reward - mean) ** 2 for reward in rewards) / max(1, count - 1)
    return Evaluation(mean, math.sqrt(variance / count), count, tokens / count)


def _request(assignment: SlotAssignment, greedy: bool) -> GenerationRequest:
    request = assignment.requests[0]
    return replace(request, temperature=GREEDY_TEMPERATURE) if greedy else request
