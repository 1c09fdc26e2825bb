"""A transformers model that holds one policy at a time: load weights, check them, and run the forward pass.

`TransformersSampler` and `TransformersScorer` compute with it. Both may share one, as in a simulated swarm.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache

from p2prl.errors import ConfigError, IntegrityError
from p2prl.models.base_model.pretrained import quiet_transformers
from p2prl.models.engines.transformers.device_changes import Comparison, Pieces, write_pieces
from p2prl.models.hardware.device_choice import device_class, use_exact_arithmetic
from p2prl.models.logprobs.replay_head import ReplayHead, find_replay_head
from p2prl.models.sampler_port import GenerationRequest, StagedWeights, Weights
from p2prl.models.seeded_draw.draw import check_draw
from p2prl.models.weights.layout import WeightLayout, check_weights, copy_weights, held_digest
from p2prl.protocol.rollout_group import EngineClass

UNNAMED = -1
"""The version in spans when weights were loaded without one."""

_KNOWN_PROMPT_TOKENS = 4
"""Tokens 0, 1, … of the forward pass after a swap: enough for every layer to attend to something."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _ComparedWeights(StagedWeights):
    """A checked policy, and how it differs from the one in the engine when it was staged."""

    loads: int
    """`PolicyModel.loads` then."""
    changes: Pieces | None


class PolicyModel:
    """A causal LM in evaluation mode, and the policy of `layout` in it.

    The model's facts are attributes beside it, because samplers and scorers read them with the weights.
    """

    def __init__(self, model: PreTrainedModel, layout: WeightLayout) -> None:
        """`MachineError` when the model's device does not reproduce the sampling noise."""
        quiet_transformers()
        self.model = model.eval()
        """The causal LM."""
        self._layout = layout
        parameter = next(model.parameters())
        self.device: torch.device = parameter.device
        self.dtype: torch.dtype = parameter.dtype
        self.config: Any = model.config.get_text_config()
        """Of the decoder."""
        self.vocabulary: int = self.config.vocab_size
        self.layers: int = self.config.num_hidden_layers
        self.context: int | None = getattr(self.config, "max_position_embeddings", None)
        self.engine_class = EngineClass(
            engine="transformers",
            version=transformers.__version__,
            dtype=str(parameter.dtype).removeprefix("torch."),
            device=device_class(self.device),
        )
        self.version = UNNAMED
        """The version of the policy in the model, for spans."""
        self.loads = 0
        """Policies loaded so far: keys and values computed before the last load are another policy's."""
        self.moves = 0
        """Times that the weights' memory was given back: what knows their addresses is out of date after each."""
        self._has_policy = True
        self._freed = FreedWeights()
        self._weights_in_use = threading.Lock()
        use_exact_arithmetic()
        check_draw(self.device, self.vocabulary)

    def load(self, weights: Weights) -> None:
        """Load a policy. `IntegrityError`, and the previous policy stays, when the bytes do not fit the layout."""
        self._fill(self.stage(weights, UNNAMED))

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """See `Sampler.stage`.

        The weights are compared with those in the engine, on its device, for a switch that writes what changes.
        """
        loads, comparison = self.loads, Comparison(self._layout.parameters)

        def compare(tensor: Tensor, start: int, block: Tensor) -> None:
            with self._weights_in_use:  # which another thread may free or replace between two blocks
                if self._has_policy and self.loads == loads:
                    comparison.add(tensor.detach().view(-1)[start : start + block.numel()], block)
                else:
                    comparison.give_up()

        answer = check_weights(self.model, self._layout, weights, compare)
        return _ComparedWeights(version=version, weights=weights, answer=answer, loads=loads, changes=comparison.pieces)

    @torch.inference_mode()
    def swap(self, staged: StagedWeights) -> None:
        """See `Sampler.swap`."""
        self._fill(staged)
        if not bool(torch.isfinite(self.forward(self._known_prompt(), cache=None, keep=1)).all()):
            self._has_policy = False
            raise IntegrityError(f"version {staged.version} gives logits that are not finite")

    def drop_policy(self) -> None:
        """Forget the policy and free its memory: nothing is computed until the next one is loaded."""
        with self._weights_in_use:
            self._has_policy = False
            self.moves += 1
            self._freed.free(self.model)

    def check_ready(self, requests: Sequence[GenerationRequest]) -> None:
        """`IntegrityError` without a policy, `ConfigError` when a request does not fit the model."""
        if not self._has_policy:
            raise IntegrityError("the engine holds no policy because the last one failed its check")
        for request in requests:
            if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= self.vocabulary:
                raise ConfigError("a prompt holds token ids outside the model's vocabulary")
            size = len(request.prompt_ids) + request.max_new_tokens
            if self.context is not None and size > self.context:
                raise ConfigError(
                    f"prompt and completion of {size} tokens exceed the model's context of {self.context}",
                    remedy="Shorten the prompts or lower max_new_tokens.",
                )

    @cached_property
    @torch.inference_mode()
    def replay_head(self) -> ReplayHead | None:
        """The model's output layer, if its logits are the output of one."""
        return find_replay_head(self.model)

    def new_cache(self) -> DynamicCache:
        """An empty key-value cache for this model."""
        return DynamicCache(config=self.model.config)

    def forward(
        self,
        input_ids: Tensor,
        *,
        cache: Cache | None,
        keep: int,
        mask: Tensor | dict[str, Tensor] | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Logits (N, `keep`, V) at the last `keep` positions."""
        logits: Tensor = self.model(
            input_ids=input_ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
            logits_to_keep=keep,
        ).logits
        return logits

    def _fill(self, staged: StagedWeights) -> None:
        with self._weights_in_use:
            changes = self._changes_of(staged)
            self._has_policy = False
            self.loads += 1
            if not (self._copy(staged) if changes is None else write_pieces(changes)):
                raise IntegrityError("the weights in the engine are not those it was given")
            self._has_policy = True
            self.version = staged.version

    def _changes_of(self, staged: StagedWeights) -> Pieces | None:
        """What leads from the engine's weights to the staged ones; None if these were compared with others."""
        if not isinstance(staged, _ComparedWeights) or staged.loads != self.loads or not self._has_policy:
            return None
        return staged.changes

    def _copy(self, staged: StagedWeights) -> bool:
        self._freed.restore()
        copy_weights(self.model, self._layout, staged.weights)
        return held_digest(self.model, self._layout) == staged.answer

    def _known_prompt(self) -> Tensor:
        return torch.arange(min(_KNOWN_PROMPT_TOKENS, self.vocabulary), device=self.device)[None]


class FreedWeights:
    """The storages that were freed, each once, and their sizes."""

    def __init__(self) -> None:
        self._storages: list[tuple[torch.UntypedStorage, int]] = []

    def free(self, model: nn.Module) -> None:
        """Free parameters and saved buffers. Constants that no policy brings, as positions' frequencies, stay."""
        if self._storages:
            return
        tensors = {id(tensor): tensor for tensor in model.state_dict(keep_vars=True).values()}  # tied ones once
        for tensor in tensors.values():
            size_bytes = tensor.untyped_storage().nbytes()
            if not size_bytes or size_bytes != tensor.nbytes:
                continue  # part of a larger storage, which others may use
            if not tensor.untyped_storage().resizable():
                # On a CPU, a digest has lent these bytes to numpy, and torch never frees such a storage in place.
                tensor.data = torch.empty_like(tensor)
            storage = tensor.untyped_storage()
            storage.resize_(0)
            self._storages.append((storage, size_bytes))

    def restore(self) -> None:
        """Take the memory again, with contents of no meaning."""
        for storage, size_bytes in self._storages:
            storage.resize_(size_bytes)
        self._storages = []
