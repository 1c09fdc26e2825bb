"""The simplest engine that other peers can check: one completion at a time, no cache, one full pass per token.

Slow on purpose. Like every engine, it draws a token as the argmax of logits / temperature plus the noise of (seed,
position, token), so anyone with the weights can replay it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from p2prl.errors import IntegrityError
from p2prl.models.engine_port import Generation, GenerationRequest, GenerationStopped, Scored, StagedWeights, Weights
from p2prl.models.gumbel_noise import check_noise, gumbel
from p2prl.models.run_model import RunModel
from p2prl.models.weight_layout import WeightLayout, check_weights, copy_weights, held_digest
from p2prl.protocol.rollout_group import EngineClass


def build_engine(run: RunModel, *, device: torch.device, dtype: str) -> PlainEngine:
    """The entry point. An engine that reads files instead of a torch model finds them in `run.files`."""
    return PlainEngine(run.build(device=device, dtype=dtype), run.layout)


class PlainEngine:
    """See `p2prl.models.engine_port.Engine` for the contract of each method."""

    def __init__(self, model: Any, layout: WeightLayout) -> None:
        """`MachineError` when the model's device does not reproduce the sampling noise."""
        self._model = model
        self._layout = layout
        self._version = -1
        parameter = next(model.parameters())
        self._device: torch.device = parameter.device
        self._dtype = str(parameter.dtype).removeprefix("torch.")
        check_noise(self._device)

    @property
    def engine_class(self) -> EngineClass:
        """The engine class that groups declare."""
        return EngineClass(engine="plain", version="0.1.0", dtype=self._dtype, device=self._device.type)

    def load_weights(self, weights: Weights) -> None:
        """Check a policy and load it."""
        self.swap(self.stage(weights, -1))

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check a policy for `swap` while the current one stays in use."""
        answer = check_weights(self._model, self._layout, weights)
        return StagedWeights(version=version, weights=weights, answer=answer)

    def swap(self, staged: StagedWeights) -> None:
        """Load a staged policy in place and verify its digest."""
        copy_weights(self._model, self._layout, staged.weights)
        if held_digest(self._model, self._layout) != staged.answer:
            raise IntegrityError("the weights in the engine are not the staged ones")
        self._version = staged.version

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        should_stop: Callable[[], bool] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> list[Generation]:
        """Sample every request, one after the other."""
        results = []
        for request in requests:
            tokens: list[int] = []
            logprobs: list[float] = []
            spans: list[tuple[int, int]] = []
            while len(tokens) < request.max_new_tokens and not (tokens and tokens[-1] in request.stop_ids):
                logprobs_V, noisy_V = self._next(request, tokens)
                if not spans or spans[-1][1] != self._version:
                    spans.append((len(tokens), self._version))
                tokens.append(int(noisy_V.argmax()))
                logprobs.append(float(logprobs_V[tokens[-1]]))
                if on_step is not None:
                    on_step(1)  # may swap the policy
                if should_stop is not None and should_stop():
                    raise GenerationStopped("generation was stopped")
            results.append(Generation(tuple(tokens), tuple(logprobs), tokens[-1] in request.stop_ids, tuple(spans)))
        return results

    def replay(self, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> list[Scored]:
        """Score claimed completions: the log-prob of each token, and its margin below the seeded draw."""
        results = []
        for request, tokens in zip(requests, token_ids, strict=True):
            if not tokens or not all(0 <= token < self._model.config.vocab_size for token in tokens):
                raise IntegrityError("a completion is empty or outside the vocabulary")
            logprobs, margins = [], []
            for position, token in enumerate(tokens):
                logprobs_V, noisy_V = self._next(request, tokens[:position])
                logprobs.append(float(logprobs_V[token]))
                margins.append(float(noisy_V.max() - noisy_V[token]))
            results.append(Scored(tuple(logprobs), tuple(margins)))
        return results

    @torch.inference_mode()
    def _next(self, request: GenerationRequest, tokens: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Log-probs of the next token, and the noisy logits whose argmax is the seeded draw; (V,) each."""
        input_ids = torch.tensor([[*request.prompt_ids, *tokens]], device=self._device)
        scaled_V = self._model(input_ids=input_ids).logits[0, -1].float() / request.temperature
        seed = torch.tensor([request.seed], device=self._device)
        position = torch.tensor([[len(tokens)]], device=self._device)
        return torch.log_softmax(scaled_V, dim=-1), scaled_V + gumbel(seed, position, len(scaled_V))[0, 0]
