"""The sampler interface: decode completions of a policy, many at a time, in whatever order they end.

A sampler holds one policy at a time. Its draws depend only on the weights, the prompt and the seed
(`p2prl/models/seeded_draw/gumbel_noise.py`), not on the rest of the batch, so a validator can check every single token
against the slot's seed. It decodes only while `step` is called, so its caller decides when to read messages, to load
weights or to stop. An adapter wraps one inference library and is the only file that imports it. Samplers are looked up
by the name of their engine: `p2prl/models/engines/registry.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from p2prl.errors import ConfigError, P2PRLError
from p2prl.models.turns import TurnRules
from p2prl.protocol.digests import Digest
from p2prl.protocol.rollout_group import EngineClass

Weights = bytes | bytearray | memoryview
"""A weight byte string in the order of the run's layout."""

Ticket = int
"""Names a submitted request; a sampler never uses one twice."""


class GenerationStopped(P2PRLError):  # noqa: N818 - requested by the caller, so not an error
    """The caller stopped sampling between two tokens. Nothing of the call is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One completion to sample."""

    prompt_ids: tuple[int, ...]
    """Prompt token ids, special tokens included; at least one."""

    seed: int
    """63 bits; fixes every draw."""

    max_new_tokens: int
    """Most tokens to sample, the stop token included; at least 1."""

    temperature: float
    """Divisor of the logits, above 0. No top-p or top-k: hard masks flip between decoding and replay."""

    stop_ids: frozenset[int]
    """Tokens that end the completion."""

    first_position: int = 0
    """Position of the first token to sample in the noise; above 0 where a completion goes on after other tokens, which
    are then part of `prompt_ids`."""

    turns: TurnRules | None = None
    """How an environment continues the completion. Read by `sampling` alone: samplers get requests without it."""

    def __post_init__(self) -> None:
        if not self.prompt_ids or self.max_new_tokens < 1 or not 0 <= self.seed < 1 << 63:
            raise ConfigError("a request needs a prompt, space for one token and a 63-bit seed")
        if not 0 <= self.first_position < 1 << 31:
            raise ConfigError(f"first_position is {self.first_position}", remedy="Positions count from 0.")
        if not 0.0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}", remedy="Use a temperature above 0.")


@dataclass(frozen=True, slots=True)
class Generation:
    """One sampled completion."""

    token_ids: tuple[int, ...]
    """The completion, its stop token included."""

    logprobs: tuple[float, ...]
    """Log-prob of each token under the policy at the sampling temperature, without the noise."""

    finished: bool
    """Whether a stop token ended it, rather than the length limit."""

    spans: tuple[tuple[int, int], ...] = ()
    """(first token, version) of each stretch sampled under one policy; empty where the engine does not report it. Stays
    on this machine: a group on the wire declares one policy, and is replayed under that one."""

    context_tokens: int = 0
    """Tokens that an environment said in between, which no policy sampled. Samplers give none: `TurnSampling` does."""

    @property
    def sampled_tokens(self) -> int:
        """Tokens that the policy sampled: those that credit is paid for."""
        return len(self.token_ids) - self.context_tokens


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one step."""

    tokens: int
    """Tokens sampled in this step, over all completions."""

    ended: tuple[tuple[Ticket, Generation], ...] = ()
    """Completions that ended in this step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedWeights:
    """A checked policy, ready to be loaded between two tokens."""

    version: int
    """The version reported in spans."""

    weights: Weights
    """Read again when the policy is loaded; must not change until then."""

    answer: Digest
    """Digest that the engine's own weights must have afterwards."""


class Sampler(Protocol):
    """Samples under one policy at a time."""

    @property
    def engine_class(self) -> EngineClass:
        """The library, dtype and device that compute the tokens; groups declare it."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests submitted whose completion has not been returned."""
        ...

    @property
    def room(self) -> int:
        """More requests that would be decoded at once, with the memory there is; 0 or less when it is full. Further
        requests may be submitted, and wait for room."""
        ...

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check a policy for `swap`, from any thread, while this sampler keeps sampling.

        `IntegrityError` when the bytes do not fit the layout or hold weights that are not finite.
        """
        ...

    def swap(self, staged: StagedWeights) -> None:
        """Load a staged policy in place, between two steps, and check its digest.

        Later tokens of completions in flight come from the new policy, and the spans report it. `IntegrityError` when
        the weights in the engine are not the staged ones afterwards, or give no finite logits. The engine then holds no
        policy, and cannot sample until it gets one.
        """
        ...

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Ticket]:
        """Queue requests, one ticket each, in order.

        `IntegrityError` without a policy; `ConfigError` when a prompt lies outside the vocabulary or a completion
        outside the context.
        """
        ...

    def step(self) -> StepResult:
        """Sample about one token of each completion in flight. Returns at once when there is none.

        `IntegrityError` when the policy gives logits that are not numbers; all completions in flight are then dropped.
        """
        ...

    def cancel(self) -> None:
        """Drop all completions in flight and everything queued."""
        ...

    def sleep(self) -> None:
        """Drop all completions in flight and free as much device memory as the library can. The engine then holds no
        policy; `swap` wakes it."""
        ...
