"""The simplest sampler that other peers can check: one completion at a time, no cache, one full pass per token.

Slow on purpose. Like every sampler, it draws a token as the argmax of logits / temperature plus the noise of (seed,
position, token), so anyone with the weights can replay it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from p2prl.errors import IntegrityError
from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import Generation, GenerationRequest, StagedWeights, StepResult, Ticket, Weights
from p2prl.models.seeded_draw.draw import check_draw, draw_with_logprobs
from p2prl.models.weights.layout import WeightLayout, check_weights, copy_weights, held_digest
from p2prl.protocol.rollout_group import EngineClass


def build_sampler(run: RunModel, *, device: torch.device, dtype: str, memory_bytes: int | None = None) -> PlainSampler:
    """The entry point. A sampler that reads files instead of a torch model finds them in `run.files`."""
    del memory_bytes  # one completion at a time, without a cache, needs little besides the weights
    return PlainSampler(run.build(device=device, dtype=dtype), run.layout)


@dataclass
class _Completion:
    """One completion in flight."""

    ticket: Ticket
    request: GenerationRequest
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)


class PlainSampler:
    """See `p2prl.models.sampler_port.Sampler` for the contract of each method."""

    def __init__(self, model: Any, layout: WeightLayout) -> None:
        """`MachineError` when the model's device does not reproduce the sampling noise."""
        self._model = model
        self._layout = layout
        self._version = -1
        self._submitted = 0
        self._waiting: deque[_Completion] = deque()
        parameter = next(model.parameters())
        self._device: torch.device = parameter.device
        self._dtype = str(parameter.dtype).removeprefix("torch.")
        check_draw(self._device, model.config.vocab_size)

    @property
    def engine_class(self) -> EngineClass:
        """The engine class that groups declare."""
        return EngineClass(engine="plain", version="0.1.0", dtype=self._dtype, device=self._device.type)

    @property
    def in_flight(self) -> int:
        """Completions that have not ended."""
        return len(self._waiting)

    @property
    def room(self) -> int:
        """It decodes one completion at a time."""
        return 1 - len(self._waiting)

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

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Ticket]:
        """Queue requests."""
        tickets = list(range(self._submitted, self._submitted + len(requests)))
        self._submitted += len(requests)
        self._waiting += map(_Completion, tickets, requests)
        return tickets

    @torch.inference_mode()
    def step(self) -> StepResult:
        """Sample the next token of the oldest completion."""
        if not self._waiting:
            return StepResult(0)
        row = self._waiting[0]
        request = row.request
        position = request.first_position + len(row.tokens)
        input_ids = torch.tensor([[*request.prompt_ids, *row.tokens]], device=self._device)
        logits_1V = self._model(input_ids=input_ids).logits[:, -1]
        temperature, seed = torch.tensor([request.temperature]), torch.tensor([request.seed])
        token_1, logprob_1 = draw_with_logprobs(logits_1V, temperature, seed, torch.tensor([position]))
        token = int(token_1)
        if not row.spans or row.spans[-1][1] != self._version:
            row.spans.append((len(row.tokens), self._version))
        row.tokens.append(token)
        row.logprobs.append(float(logprob_1))
        finished = token in request.stop_ids
        if not finished and len(row.tokens) < request.max_new_tokens:
            return StepResult(1)
        self._waiting.popleft()
        made = Generation(tuple(row.tokens), tuple(row.logprobs), finished, tuple(row.spans))
        return StepResult(1, ((row.ticket, made),))

    def cancel(self) -> None:
        """Drop everything."""
        self._waiting.clear()

    def sleep(self) -> None:
        """Drop everything; there is no memory to free."""
        self.cancel()
