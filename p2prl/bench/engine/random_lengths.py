"""Sampling of groups whose completions have random lengths, submitted as a volunteer submits them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from p2prl.bench.device_time import CPU, Spent, Stopwatch
from p2prl.client.next_action import Agent, AgentConfig, LocalPolicy, Sample
from p2prl.errors import require
from p2prl.models.sampler_port import GenerationRequest, Sampler, Ticket
from p2prl.protocol.digests import Digest
from p2prl.protocol.manifests import PolicyManifest, blob_of

_GROUP = 8
"""Completions of a slot."""


@dataclass(frozen=True, kw_only=True)
class LengthsBenchConfig:
    """Lognormal lengths of completions."""

    batch: int = 32
    """Completions in flight that the volunteer aims at."""
    groups: int = 16
    mean: float = 300.0
    spread: float = 0.8
    """Standard deviation of the logarithm of a length."""
    most: int = 1024

    def __post_init__(self) -> None:
        require("batch", self.batch, self.batch % _GROUP == 0 < self.batch, f"a multiple of {_GROUP}")
        require("groups", self.groups, self.groups > self.batch // _GROUP, "more than are in flight at a time")
        require("most", self.most, 1 <= self.most <= 4000, "1 to 4000 tokens")
        require("mean", self.mean, self.mean > 0, "above 0")
        require("spread", self.spread, self.spread >= 0, "0 or more")


@dataclass(frozen=True, kw_only=True)
class LengthsWork:
    """What was sampled until the last group was submitted."""

    tokens: int
    steps: int
    most_in_flight: int
    spent: Spent

    @property
    def share(self) -> float:
        """Decode slots that gave a token, of as many in each step as were in flight at most."""
        return self.tokens / (self.steps * self.most_in_flight)


def slots_at_work(
    sampler: Sampler,
    config: LengthsBenchConfig,
    *,
    vocabulary: int,
    prompt_tokens: int,
    seed: int,
    device: torch.device = CPU,
) -> LengthsWork:
    """Sample groups until the last one has been submitted: what follows has too little work for any engine."""
    requests = _groups(config, vocabulary, prompt_tokens, random.Random(seed))  # noqa: S311 - a benchmark's lengths
    agent = _agent(config)
    left: dict[Ticket, int] = {}
    open_slots: dict[int, int] = {}
    tokens = steps = most = submitted = 0
    watch = Stopwatch(device)
    while True:
        action = agent.next_action(
            outstanding=0,
            learner_in_reach=False,
            busy=sampler.in_flight / _GROUP,
            room=sampler.room // _GROUP,
        )
        assert isinstance(action, Sample)
        if submitted + len(action.slots) > config.groups:
            break
        for slot in action.slots:
            left.update(dict.fromkeys(sampler.submit(next(requests)), slot))
            open_slots[slot] = _GROUP
        agent.submitted(action.slots)
        submitted += len(action.slots)
        most = max(most, sampler.in_flight)
        result = sampler.step()
        tokens, steps = tokens + result.tokens, steps + 1
        for ticket, _ in result.ended:
            slot = left.pop(ticket)
            open_slots[slot] -= 1
            if not open_slots[slot]:
                agent.completed([slot])
    spent = watch.spent()
    sampler.cancel()
    return LengthsWork(tokens=tokens, steps=steps, most_in_flight=most, spent=spent)


def _groups(
    config: LengthsBenchConfig, vocabulary: int, prompt_tokens: int, rng: random.Random
) -> Iterator[list[GenerationRequest]]:
    location = math.log(config.mean) - config.spread**2 / 2
    while True:
        prompt = tuple(rng.randrange(vocabulary) for _ in range(prompt_tokens))
        yield [
            GenerationRequest(
                prompt_ids=prompt,
                seed=rng.getrandbits(63),
                max_new_tokens=min(config.most, max(1, round(rng.lognormvariate(location, config.spread)))),
                temperature=1.0,
                stop_ids=frozenset(),
            )
            for _ in range(_GROUP)
        ]


def _agent(config: LengthsBenchConfig) -> Agent:
    """A volunteer with a policy loaded, no learner in reach, and the batch as its slots in flight."""
    manifest = PolicyManifest(0, 0, blob_of(b"weights", 4096), bytes(32), b"", bytes(32), 0)
    policy = LocalPolicy(manifest, Digest(bytes(32)), "")
    agent = Agent(AgentConfig(slots_in_flight=config.batch // _GROUP))
    agent.policy_ready(policy)
    agent.loaded_policy(policy)
    return agent
