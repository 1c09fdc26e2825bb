"""The engine on Hugging Face transformers: any causal language model, on any device torch has.

Decoding pads prompts on the left and keeps a key-value cache. Replaying pads on the right and needs neither mask nor
cache. Both bound their memory, so that neither a long completion nor a large vocabulary can exhaust a volunteer's
machine: batches are split by tokens, and logits by positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.cache_utils import DynamicCache

from p2prl.errors import ConfigError, IntegrityError, LocalProtocolError
from p2prl.models.engine_port import Generation, GenerationRequest, GenerationStopped, Scored, StagedWeights, Weights
from p2prl.models.gumbel_noise import MAX_NOISE_ELEMENTS, StepNoise, check_noise, gumbel
from p2prl.models.policy_logprobs import pad_right
from p2prl.models.pretrained import quiet_transformers
from p2prl.models.run_model import RunModel
from p2prl.models.weight_layout import WeightLayout, check_weights, copy_weights, held_digest
from p2prl.protocol.limits import MAX_NAME_CHARS
from p2prl.protocol.rollout_group import EngineClass

DEFAULT_BATCH_TOKENS = 16_384
"""Tokens of one batch, padding included. Bounds activations and the key-value cache."""

UNNAMED = -1
"""The version in spans when weights were loaded without one."""

_KNOWN_PROMPT_TOKENS = 4
"""Tokens 0, 1, … of the forward pass after a swap: enough for every layer to attend to something."""

_COMPACT_SHARE = 0.75
"""The batch is compacted once no more than this share of its rows is still being sampled."""


@dataclass(slots=True)
class _Row:
    """One completion being sampled."""

    request: GenerationRequest
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[tuple[int, int]] = field(default_factory=list)
    finished: bool = False

    @property
    def ended(self) -> bool:
        return self.finished or len(self.token_ids) == self.request.max_new_tokens


def build_engine(run: RunModel, *, device: torch.device, dtype: str) -> TransformersEngine:
    """The engine of a run: see `EngineBuilder`."""
    return TransformersEngine(run.build(device=device, dtype=dtype), run.layout)


class TransformersEngine:
    """An `Engine` that owns `model`, a causal LM in evaluation mode, and loads policies of `layout` into it."""

    def __init__(self, model: Any, layout: WeightLayout, *, max_batch_tokens: int = DEFAULT_BATCH_TOKENS) -> None:
        """`MachineError` when the model's device does not reproduce the sampling noise."""
        quiet_transformers()
        self._model = model.eval()
        self._layout = layout
        self._max_batch_tokens = max_batch_tokens
        parameter = next(model.parameters())
        self._device: torch.device = parameter.device
        config = model.config.get_text_config()
        self._vocabulary: int = config.vocab_size
        self._context: int | None = getattr(config, "max_position_embeddings", None)
        name = torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else self._device.type
        self._class = EngineClass(
            engine="transformers",
            version=transformers.__version__,
            dtype=str(parameter.dtype).removeprefix("torch."),
            device=name[:MAX_NAME_CHARS],
        )
        self._version = UNNAMED
        self._has_policy = True
        check_noise(self._device)

    @property
    def engine_class(self) -> EngineClass:
        """See `Engine.engine_class`."""
        return self._class

    def load_weights(self, weights: Weights) -> None:
        """See `Engine.load_weights`."""
        self._fill(self.stage(weights, UNNAMED))

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """See `Engine.stage`."""
        answer = check_weights(self._model, self._layout, weights)
        return StagedWeights(version=version, weights=weights, answer=answer)

    @torch.inference_mode()
    def swap(self, staged: StagedWeights) -> None:
        """See `Engine.swap`."""
        self._fill(staged)
        prompt = torch.arange(min(_KNOWN_PROMPT_TOKENS, self._vocabulary), device=self._device)[None]
        if not bool(torch.isfinite(self._forward(prompt, cache=None, keep=1)).all()):
            self._has_policy = False
            raise IntegrityError(f"version {staged.version} gives logits that are not finite")

    def _fill(self, staged: StagedWeights) -> None:
        self._has_policy = False
        copy_weights(self._model, self._layout, staged.weights)
        if held_digest(self._model, self._layout) != staged.answer:
            raise IntegrityError("the weights in the engine are not those it was given")
        self._has_policy = True
        self._version = staged.version

    @torch.inference_mode()
    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        should_stop: Callable[[], bool] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> list[Generation]:
        """See `Engine.generate`."""
        self._check_ready(requests)
        rows = [_Row(request) for request in requests]
        sizes = [(len(request.prompt_ids), request.max_new_tokens) for request in requests]
        for batch in self._batches(sizes):
            for sampled in self._decode([rows[i] for i in batch]):
                if on_step is not None:
                    on_step(sampled)
                if should_stop is not None and should_stop():
                    raise GenerationStopped("generation was stopped")
        return [Generation(tuple(row.token_ids), tuple(row.logprobs), row.finished, tuple(row.spans)) for row in rows]

    @torch.inference_mode()
    def replay(self, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> list[Scored]:
        """See `Engine.replay`."""
        if len(requests) != len(token_ids):
            raise LocalProtocolError(f"{len(token_ids)} completions for {len(requests)} requests")
        self._check_ready(requests)
        for request, ids in zip(requests, token_ids, strict=True):
            if not 0 < len(ids) <= request.max_new_tokens or min(ids) < 0 or max(ids) >= self._vocabulary:
                raise IntegrityError("a completion is empty, too long or outside the vocabulary")
        scored: dict[int, Scored] = {}
        sizes = [(len(request.prompt_ids), len(ids)) for request, ids in zip(requests, token_ids, strict=True)]
        for batch in self._batches(sizes):
            results = self._score([requests[i] for i in batch], [token_ids[i] for i in batch])
            scored.update(zip(batch, results, strict=True))
        return [scored[i] for i in range(len(requests))]

    def _check_ready(self, requests: Sequence[GenerationRequest]) -> None:
        if not self._has_policy:
            raise IntegrityError("the engine holds no policy because the last one failed its check")
        for request in requests:
            if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= self._vocabulary:
                raise ConfigError("a prompt holds token ids outside the model's vocabulary")
            size = len(request.prompt_ids) + request.max_new_tokens
            if self._context is not None and size > self._context:
                raise ConfigError(
                    f"prompt and completion of {size} tokens exceed the model's context of {self._context}",
                    remedy="Shorten the prompts or lower max_new_tokens.",
                )

    def _batches(self, sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
        """Indices of rows of similar size, so that little is padded, within the token bound (or one row alone)."""
        batch: list[int] = []
        longest = (0, 0)
        for index in sorted(range(len(sizes)), key=sizes.__getitem__):
            grown = (max(longest[0], sizes[index][0]), max(longest[1], sizes[index][1]))
            if batch and (len(batch) + 1) * sum(grown) > self._max_batch_tokens:
                yield batch
                batch, grown = [], sizes[index]
            batch.append(index)
            longest = grown
        if batch:
            yield batch

    def _decode(self, rows: list[_Row]) -> Iterator[int]:
        """Sample `rows` to their ends, yielding the number of tokens sampled in each step."""
        logits_NV, cache, mask_NL = self._prefill([row.request.prompt_ids for row in rows])
        seeds_N = torch.tensor([row.request.seed for row in rows], dtype=torch.int64, device=self._device)
        temperatures_N = torch.tensor([row.request.temperature for row in rows], device=self._device)
        noise = StepNoise(seeds_N, logits_NV.shape[-1])
        step = 0
        while True:
            scaled_NV = logits_NV.float() / temperatures_N[:, None]
            tokens_N = (scaled_NV + noise.at(step)).argmax(dim=-1)
            picked_N = torch.log_softmax(scaled_NV, dim=-1).gather(1, tokens_N[:, None])[:, 0]
            _record(rows, tokens_N.tolist(), picked_N.tolist(), self._version)
            yield sum(len(row.token_ids) == step + 1 for row in rows)
            alive = [i for i, row in enumerate(rows) if not row.ended]
            if not alive:
                return
            if len(alive) <= _COMPACT_SHARE * len(rows):
                kept = torch.tensor(alive, device=self._device)
                cache.batch_select_indices(kept)
                rows = [rows[i] for i in alive]
                noise.keep(kept)
                tokens_N, temperatures_N = tokens_N[kept], temperatures_N[kept]
                mask_NL = None if mask_NL is None else mask_NL[kept]
            positions_N1 = None
            if mask_NL is not None:
                mask_NL = torch.cat([mask_NL, mask_NL.new_ones(len(rows), 1)], dim=1)
                positions_N1 = mask_NL.sum(dim=1, keepdim=True) - 1
            logits_NV = self._forward(tokens_N[:, None], cache=cache, mask=mask_NL, positions=positions_N1, keep=1)[
                :, -1
            ]
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
            mask = mask.to(device=self._device, dtype=torch.int64)
            positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._model.config)
        input_ids = torch.tensor(padded, dtype=torch.int64, device=self._device)
        logits = self._forward(input_ids, cache=cache, mask=mask, positions=positions, keep=1)[:, -1]
        if len(unique) < len(prompts):
            owners = torch.tensor([unique[prompt] for prompt in prompts], device=self._device)
            cache.batch_select_indices(owners)
            logits = logits[owners]
            mask = None if mask is None else mask[owners]
        return logits, cache, mask

    def _score(self, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> list[Scored]:
        """Log-probs and margins of one batch."""
        rows = [[*request.prompt_ids, *ids] for request, ids in zip(requests, token_ids, strict=True)]
        ids_NL = pad_right(rows, self._device)
        seeds_N = torch.tensor([request.seed for request in requests], dtype=torch.int64, device=self._device)
        temperatures_N = torch.tensor([request.temperature for request in requests], device=self._device)
        prompts_N = torch.tensor([len(request.prompt_ids) for request in requests], device=self._device)
        first, last = int(prompts_N.min()) - 1, ids_NL.shape[1] - 1  # logits at first..last − 1 predict completions
        width = max(1, MAX_NOISE_ELEMENTS // (len(rows) * self._vocabulary))
        cache = DynamicCache(config=self._model.config) if last - first > width else None
        logprobs, margins = [], []
        fed = 0
        for start in range(first, last, width):
            end = min(start + width, last)
            logits = self._forward(ids_NL[:, fed:end], cache=cache, keep=end - start)
            fed = end
            targets = ids_NL[:, start + 1 : end + 1, None]
            # Left of a row's completion the step is negative: computed at 0 and removed below.
            steps = torch.arange(start + 1, end + 1, device=self._device) - prompts_N[:, None]
            scaled = logits.float() / temperatures_N[:, None, None]
            logprobs.append(torch.log_softmax(scaled, dim=-1).gather(2, targets)[:, :, 0])
            noisy = scaled + gumbel(seeds_N, steps.clamp(min=0), scaled.shape[-1])
            margins.append(noisy.amax(dim=-1) - noisy.gather(2, targets)[:, :, 0])
        all_logprobs, all_margins = torch.cat(logprobs, dim=1).tolist(), torch.cat(margins, dim=1).tolist()
        results = []
        for i, (request, ids) in enumerate(zip(requests, token_ids, strict=True)):
            own = slice(len(request.prompt_ids) - 1 - first, len(request.prompt_ids) - 1 - first + len(ids))
            results.append(Scored(tuple(all_logprobs[i][own]), tuple(all_margins[i][own])))
        return results

    def _forward(
        self,
        input_ids: Tensor,
        *,
        cache: DynamicCache | None,
        keep: int,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Logits (N, `keep`, V) at the last `keep` positions."""
        logits: Tensor = self._model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=keep,
        ).logits
        return logits


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
