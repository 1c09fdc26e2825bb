"""The engine interface: sample completions from a policy, and replay completions of other peers.

An engine holds one policy at a time. Its draws depend only on the weights, the prompt and the seed
(`p2prl/models/gumbel_noise.py`), not on the rest of the batch, so a validator can check every single token against the
slot's seed. An adapter wraps one inference library and is the only file that imports it. Engines are looked up by name:
`p2prl/models/engine_registry.py`.
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


class GenerationStopped(P2PRLError):  # noqa: N818 - requested by the caller, so not an error
    """`should_stop` returned true between two tokens. Nothing of the call is kept."""


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

    def __post_init__(self) -> None:
        if not self.prompt_ids or self.max_new_tokens < 1 or not 0 <= self.seed < 1 << 63:
            raise ConfigError("a request needs a prompt, space for one token and a 63-bit seed")
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


@dataclass(frozen=True, slots=True)
class Scored:
    """Replay of a completion that a peer claims to have sampled from the engine's policy."""

    logprobs: tuple[float, ...]
    """Log-prob of each token at the sampling temperature."""

    margins: tuple[float, ...]
    """Distance of each token's noisy logit below the best one: 0 where the token is the seeded draw, else positive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagedWeights:
    """A checked policy, ready to be loaded between two tokens."""

    version: int
    """The version reported in spans."""

    weights: Weights
    """Read again when the policy is loaded; must not change until then."""

    answer: Digest
    """Digest that the engine's own weights must have afterwards."""


class Engine(Protocol):
    """Samples and replays under one policy at a time."""

    @property
    def engine_class(self) -> EngineClass:
        """The library, dtype and device that compute the tokens; groups declare it."""
        ...

    def load_weights(self, weights: Weights) -> None:
        """Load a policy. `IntegrityError`, and the previous policy stays, when the bytes do not fit the layout."""
        ...

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check a policy for `swap`, from any thread, while this engine keeps sampling.

        `IntegrityError` when the bytes do not fit the layout or hold weights that are not finite.
        """
        ...

    def swap(self, staged: StagedWeights) -> None:
        """Load a staged policy in place, and check its digest.

        `on_step` may call it between two tokens of a `generate` in progress: later tokens come from the new policy,
        and the spans report it. `IntegrityError` when the weights in the engine are not the staged ones afterwards, or
        give no finite logits. The engine then holds no policy, and cannot sample until it gets one.
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

        Between tokens, `should_stop` may end the call (`GenerationStopped`), and `on_step` gets the number of tokens
        sampled since its last call.
        """
        ...

    def replay(self, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> list[Scored]:
        """Score the completions `token_ids` of `requests` with one batched prefill.

        `IntegrityError` when a token id is outside the model's vocabulary or a completion is empty.
        """
        ...
