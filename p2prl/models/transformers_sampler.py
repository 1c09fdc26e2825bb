"""The sampler on Hugging Face transformers: any causal language model, on any device torch has.

Decoding pads prompts on the left and keeps a key-value cache. Memory is bounded: batches are split by tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from p2prl.errors import IntegrityError
from p2prl.models.batching import DEFAULT_BATCH_TOKENS, batches
from p2prl.models.policy_model import PolicyModel
from p2prl.models.run_model import RunModel
from p2prl.models.sampler_port import Generation, GenerationRequest, StagedWeights, StepResult, Ticket, Weights
from p2prl.models.seeded_draw.draw import draw_with_logprobs
from p2prl.protocol.rollout_group import EngineClass

_COMPACT_SHARE = 0.75
"""The batch is compacted once no more than this share of its rows is still being sampled."""

_ROWS = 64
"""Completions decoded at once at most."""


@dataclass(slots=True)
class _Row:
    """One completion being sampled."""

    ticket: Ticket
    request: GenerationRequest
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    finished: bool = False

    @property
    def ended(self) -> bool:
        return self.finished or len(self.token_ids) == self.request.max_new_tokens

    def generation(self) -> Generation:
        return Generation(tuple(self.token_ids), tuple(self.logprobs), self.finished, tuple(self.spans))


def build_sampler(run: RunModel, *, device: torch.device, dtype: str) -> TransformersSampler:
    """The sampler of a run: see `SamplerBuilder`."""
    return TransformersSampler(PolicyModel(run.build(device=device, dtype=dtype), run.layout))


class TransformersSampler:
    """A `Sampler` that computes with `policy`."""

    def __init__(self, policy: PolicyModel, *, max_batch_tokens: int = DEFAULT_BATCH_TOKENS) -> None:
        self._policy = policy
        self._max_batch_tokens = max_batch_tokens
        self._tickets = itertools.count()
        self._queued: list[_Row] = []
        self._decoding: list[_Row] = []
        self._steps: Iterator[int] = iter(())

    @property
    def engine_class(self) -> EngineClass:
        """See `Sampler.engine_class`."""
        return self._policy.engine_class

    @property
    def in_flight(self) -> int:
        """See `Sampler.in_flight`."""
        return len(self._queued) + len(self._decoding)

    @property
    def room(self) -> int:
        """See `Sampler.room`."""
        return _ROWS - self.in_flight

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """See `Sampler.stage`."""
        return self._policy.stage(weights, version)

    def swap(self, staged: StagedWeights) -> None:
        """See `Sampler.swap`."""
        self._policy.swap(staged)

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Ticket]:
        """See `Sampler.submit`."""
        self._policy.check_ready(requests)
        rows = [_Row(next(self._tickets), request) for request in requests]
        self._queued += rows
        return [row.ticket for row in rows]

    @torch.inference_mode()
    def step(self) -> StepResult:
        """See `Sampler.step`."""
        if not self._decoding:
            if not self._queued:
                return StepResult(0)
            self._begin_batch()
        try:
            self._policy.check_ready(())
            tokens = next(self._steps)
        except IntegrityError:
            self.cancel()
            raise
        ended = [row for row in self._decoding if row.ended]
        self._decoding = [row for row in self._decoding if not row.ended]
        return StepResult(tokens, tuple((row.ticket, row.generation()) for row in ended))

    def cancel(self) -> None:
        """See `Sampler.cancel`."""
        self._queued, self._decoding, self._steps = [], [], iter(())

    def sleep(self) -> None:
        """See `Sampler.sleep`."""
        self.cancel()
        self._policy.drop_policy()

    def _begin_batch(self) -> None:
        sizes = [(len(row.request.prompt_ids), row.request.max_new_tokens) for row in self._queued]
        chosen = next(batches(sizes, self._max_batch_tokens))
        self._decoding = [self._queued[i] for i in chosen]
        self._queued = [row for i, row in enumerate(self._queued) if i not in set(chosen)]
        self._steps = self._decode(list(self._decoding))

    def _decode(self, rows: list[_Row]) -> Iterator[int]:
        """Sample `rows` to their ends, yielding the number of tokens sampled in each step."""
        logits_NV, cache, mask_NL = self._prefill([row.request.prompt_ids for row in rows])
        seeds_N = torch.tensor([row.request.seed for row in rows], dtype=torch.int64)
        temperatures_N = torch.tensor([row.request.temperature for row in rows])
        step = 0
        while True:
            tokens_N, logprobs_N = draw_with_logprobs(
                logits_NV, temperatures_N, seeds_N, torch.full_like(seeds_N, step)
            )
            _record(rows, tokens_N.tolist(), logprobs_N.tolist(), self._policy.version)
            yield sum(len(row.token_ids) == step + 1 for row in rows)
            alive = [i for i, row in enumerate(rows) if not row.ended]
            if not alive:
                return
            if len(alive) <= _COMPACT_SHARE * len(rows):
                kept = torch.tensor(alive, device=self._policy.device)
                cache.batch_select_indices(kept)
                rows = [rows[i] for i in alive]
                seeds_N, temperatures_N, tokens_N = seeds_N[alive], temperatures_N[alive], tokens_N[kept]
                mask_NL = None if mask_NL is None else mask_NL[kept]
            positions_N1 = None
            if mask_NL is not None:
                mask_NL = torch.cat([mask_NL, mask_NL.new_ones(len(rows), 1)], dim=1)
                positions_N1 = mask_NL.sum(dim=1, keepdim=True) - 1
            logits_NV = self._policy.forward(
                tokens_N[:, None], cache=cache, mask=mask_NL, positions=positions_N1, keep=1
            )[:, -1]
            step += 1

    def _prefill(self, prompts: Sequence[tuple[int, ...]]) -> tuple[Tensor, DynamicCache, Tensor | None]:
        """Next-token logits (N, V), the cache and the mask (N, P) of left-padded prompts; no mask if none is padded.

        A prompt that several rows share, as in a group, is computed once.
        """
        unique = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        longest = max(map(len, unique))
        padded = [[0] * (longest - len(prompt)) + list(prompt) for prompt in unique]
        mask = positions = None
        if any(len(prompt) != longest for prompt in unique):
            mask = torch.tensor([[i >= longest - len(prompt) for i in range(longest)] for prompt in unique])
            mask = mask.to(device=self._policy.device, dtype=torch.int64)
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        cache = self._policy.new_cache()
        input_ids = torch.tensor(padded, dtype=torch.int64, device=self._policy.device)
        logits = self._policy.forward(input_ids, cache=cache, mask=mask, positions=positions, keep=1)[:, -1]
        if len(unique) < len(prompts):
            owners = torch.tensor([unique[prompt] for prompt in prompts], device=self._policy.device)
            cache.batch_select_indices(owners)
            logits = logits[owners]
            mask = None if mask is None else mask[owners]
        return logits, cache, mask


def _record(rows: Sequence[_Row], tokens: Sequence[int], logprobs: Sequence[float], version: int) -> None:
    """Append one step's tokens, sampled under `version`, to the rows that have not ended."""
    for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
        if row.ended:
            continue
        if not math.isfinite(logprob):
            raise IntegrityError("the policy gives logits that are not numbers")
        if not row.spans or row.spans[-1][1] != version:
            row.spans.append((len(row.token_ids), version))
        row.token_ids.append(token)
        row.logprobs.append(logprob)
        row.finished = token in row.request.stop_ids
