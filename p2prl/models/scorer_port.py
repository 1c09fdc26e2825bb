"""The scorer interface: replay completions that other peers sampled, token by token, with one batched prefill.

A scorer needs the logits of the complete vocabulary, which inference servers do not give out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from p2prl.errors import LocalProtocolError
from p2prl.models.sampler_port import GenerationRequest, Weights
from p2prl.protocol.rollout_group import EngineClass


@dataclass(frozen=True, slots=True)
class Scored:
    """Replay of a completion that a peer claims to have sampled from the scorer's policy."""

    margins: tuple[float, ...]
    """Distance of each token's noisy logit below the best one: 0 where the token is the seeded draw, else positive."""

    logprobs: tuple[float, ...]
    """Log-prob of each token at the sampling temperature."""

    best_logprobs: tuple[float, ...]
    """Log-prob of the seeded draw at each position: the token's own where its margin is 0."""

    sizes: tuple[float, ...]
    """Root mean square of each position's logits, at the sampling temperature; a sample of the vocabulary will do."""

    probe_logprobs: tuple[float, ...] = ()
    """Log-probs of the tokens asked for at the completion's last position, at the sampling temperature."""


def check_counts(requests: Sequence[object], token_ids: Sequence[object], probes: Sequence[object]) -> None:
    """`LocalProtocolError` unless the arguments of a replay are of as many completions, probes where there are any."""
    if len(requests) != len(token_ids) or len(probes) not in (0, len(requests)):
        raise LocalProtocolError(f"{len(token_ids)} completions and {len(probes)} probes, {len(requests)} requests")


class Scorer(Protocol):
    """Replays under one policy at a time."""

    @property
    def engine_class(self) -> EngineClass:
        """The library, dtype and device that compute the scores."""
        ...

    @property
    def layers(self) -> int:
        """Layers of the model: rounding noise grows with them."""
        ...

    def load_weights(self, weights: Weights) -> None:
        """Load a policy. `IntegrityError`, and the previous policy stays, when the bytes do not fit the layout."""
        ...

    def sleep(self) -> None:
        """Forget the policy and free its memory until the next one is loaded."""
        ...

    def replay(
        self,
        requests: Sequence[GenerationRequest],
        token_ids: Sequence[Sequence[int]],
        probes: Sequence[Sequence[int]] = (),
    ) -> list[Scored]:
        """Score the completions `token_ids` of `requests`.

        `probes`, if given, are token ids for each completion, equally many, whose log-probs at its last position are
        wanted as well. `IntegrityError` when a token id is outside the model's vocabulary or a completion is empty.
        """
        ...
