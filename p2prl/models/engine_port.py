"""The engine port: what samples completions from a policy and replays them.

One engine holds one policy at a time. Its draws are a function of the weights, the prompt and the seed alone
(`p2prl/models/gumbel_noise.py`), whatever shares the batch: that is what lets a validator ask of every single token
whether
it is the one the slot's seed gives. An adapter wraps one inference library, and nothing else knows that library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from p2prl.errors import ConfigError, P2PRLError
from p2prl.protocol.digests import Digest
from p2prl.protocol.rollout_group import EngineClass

Weights = bytes | bytearray | memoryview
"""A weight byte string in the order of the run's layout."""


class GenerationStopped(P2PRLError):  # noqa: N818 - an answer to the caller's own wish, not a fault
    """`should_stop` said so between two tokens. Nothing of the call is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """One completion to sample."""

    prompt_ids: tuple[int, ...]
    """Prompt token ids, special tokens included; at least one."""

    seed: int
    """63-bit seed that fixes every draw."""

    max_new_tokens: int
    """Most tokens to sample, the stop token included; at least 1."""

    temperature: float
    """Divisor of the logits, above 0. No top-p or top-k: hard masks flip between decoding and replay."""

    stop_ids: frozenset[int]
    """Tokens that end the completion."""

    def __post_init__(self) -> None:
        if not self.prompt_ids or self.max_new_tokens < 1 or not 0 <= self.seed < 1 << 63:
            raise ConfigError("a request needs a prompt, room for one token and a 63-bit seed")
        if not 0.0 < self.temperature < float("inf"):
            raise ConfigError(f"temperature is {self.temperature}", remedy="Sample at a temperature above 0.")


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
    """(first token, version) of each stretch sampled under one policy; empty where the engine does not say. Stays on
    this machine: a group on the wire declares one policy, and is replayed under that one."""


@dataclass(frozen=True, slots=True)
class Scored:
    """What the engine's policy says about a completion that someone claims to have sampled from it."""

    logprobs: tuple[float, ...]
    """Log-prob of each token at the sampling temperature."""

    margins: tuple[float, ...]
    """How far each token's noisy logit lies below the best one: 0 where the token is the seeded draw, else above."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedWeights:
    """A policy that was checked, and waits to be taken up between two tokens."""

    version: int
    """What spans call it."""

    weights: Weights
    """Read once more when it is taken up; must not change until then."""

    answer: Digest
    """What the engine's own words must digest to afterwards."""


class Engine(Protocol):
    """Samples and replays under one policy at a time."""

    @property
    def engine_class(self) -> EngineClass:
        """What computes the tokens; numerical tolerance is calibrated per class."""
        ...

    def load_weights(self, weights: Weights) -> None:
        """Take up a policy. `IntegrityError`, and the policy before stays, when the bytes do not fit the layout."""
        ...

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check a policy for `swap`, from any thread, while this engine goes on sampling.

        `IntegrityError` when the bytes do not fit the layout or hold words that are not finite.
        """
        ...

    def swap(self, staged: StagedWeights) -> None:
        """Take up a staged policy in place and test it by its known answer.

        May be called by `on_step`, between two tokens of a `generate` under way: what it samples from there on comes
        from the new policy, and the spans say so. `IntegrityError` when the words in the engine are not the staged
        ones afterwards, or give no finite logits: it then holds no policy, and does nothing before it is given one.
        """
        ...

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        should_stop: Callable[[], bool] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> list[Generation]:
        """Sample every request, in the order given.

        Between tokens, `should_stop` may call it off (`GenerationStopped`) and `on_step` learns how many tokens were
        sampled since it was last called.
        """
        ...

    def replay(self, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> list[Scored]:
        """Score the completions `token_ids` of `requests` with one batched prefill.

        `IntegrityError` when a token id is outside the model's vocabulary or a completion is empty.
        """
        ...
