"""Sampling of work slots: assign the slots of a batch, decode them, pack and sign one rollout group each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from p2prl.client.agent import Sample
from p2prl.clock import Clock
from p2prl.models.group_work import SamplingTools
from p2prl.models.sampling import sample_all
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.signed_group import seal_group


@dataclass(frozen=True, slots=True)
class FinishedGroup:
    """A signed rollout group."""

    raw: bytes
    body: bytes
    """Empty when the envelope `raw` holds the group."""
    slot: int
    tokens: int
    """Completion tokens."""
    reward: float
    """Mean over the completions."""
    created: float
    """Unix time it was signed."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Totals of the slots decoded together."""

    rewards: Sequence[float]
    """Mean reward of each group."""
    tokens: int
    """Completion tokens of all groups."""
    seconds: float
    """Time the decoding took."""


class Sampler:
    """Samples slots of one run as one volunteer."""

    def __init__(self, identity: Identity, run: Digest, clock: Clock) -> None:
        self._identity = identity
        self._run = run
        self._clock = clock
        self._stopped = False

    def stop(self) -> None:
        """Make the batch being decoded, and every later one, raise `GenerationStopped`."""
        self._stopped = True

    def sample(self, tools: SamplingTools, order: Sample, *, on_group: Callable[[FinishedGroup], None]) -> Batch:
        """Decode the slots of an order; `on_group` gets each group as soon as it is signed.

        Raises `GenerationStopped`, or `IntegrityError` when the policy gives no usable logits.
        """
        sampler, work, policy = tools.sampler, tools.work, order.policy
        assignments = [
            work.assign(
                policy=policy.digest,
                beacon=policy.manifest.beacon,
                peer=self._identity.public_key,
                slot=order.first + i,
            )
            for i in range(order.count)
        ]
        requests = [request for assignment in assignments for request in assignment.requests]
        began = self._clock.now()
        generations = iter(sample_all(sampler, requests, should_stop=lambda: self._stopped))
        seconds = self._clock.now() - began
        groups: list[FinishedGroup] = []
        for assignment in assignments:
            group = work.pack(
                assignment,
                [next(generations) for _ in assignment.requests],
                version=policy.manifest.version,
                policy=policy.digest,
                engine=sampler.engine_class,
                seconds=seconds / order.count,
            )
            created = self._clock.now()
            raw, body = seal_group(self._identity, group, run=self._run, now=created)
            groups.append(
                FinishedGroup(
                    raw=raw,
                    body=body,
                    slot=assignment.slot,
                    tokens=sum(len(completion.tokens) // 4 for completion in group.completions),
                    reward=sum(completion.reward for completion in group.completions) / len(group.completions),
                    created=created,
                )
            )
            on_group(groups[-1])
        return Batch([group.reward for group in groups], sum(group.tokens for group in groups), seconds)
