"""A model cut for a pipeline: some layers and some words for each stage.

The vocabulary is cut too, so that a tied matrix stays one and no stage has more to do than another: embeddings are
looked up by every stage before the layers run, and log-probs computed by every stage after them.

Shapes: N rows, L tokens of the longest, K tokens, M completion tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from p2prl.errors import ConfigError
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.models.logprobs.large_gradients import look_up
from p2prl.models.logprobs.linear_head import find_linear_head
from p2prl.models.logprobs.training_head import TrainingHead
from p2prl.ranks.process_group import RankMesh
from p2prl.ranks.rank_policy import PolicySettings
from p2prl.ranks.sharded_model import Held, Shard, ShardedModules, checkpointing_layers, drop_weights, shard_of
from p2prl.ranks.tensor_parallel import Part, cut_layers

_PROBE_TOKENS = 8
"""Positions of the comparison of stages with the model."""

_SAME = {torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}
"""Largest difference of layers that several ranks share, as a share of the largest output: another order of sums."""


class Words(nn.Module):
    """Embedding and head for a part of the vocabulary."""

    def __init__(self, model: Any, first: int, last: int, settings: PolicySettings) -> None:
        """Copies words `first` to `last`, the latter excluded, of a model with a linear head."""
        super().__init__()
        self.first = first
        self._settings = settings
        padding = getattr(model.get_input_embeddings(), "padding_idx", None)
        self._padding = padding - first if padding is not None and first <= padding < last else None
        embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings()
        self.embedding = _rows_of(embedding, first, last)
        self.own_head = None if head.weight is embedding else _rows_of(head.weight, first, last)
        self.bias = None if head.bias is None else _rows_of(head.bias, first, last)

    def forward(
        self, ids: Tensor, hidden_MH: Tensor | None = None, normalizers_M: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Embeddings (K, H) of ids, zero for other words. With hidden states, the ids' logits and the log-sum-exp of
        these words, (M,) each. With the normalizers of all words too, log-probs (M,) whose values are zeros, but whose
        gradient is right."""
        index = ids - self.first
        if hidden_MH is None:
            inside_K = (index >= 0) & (index < len(self.embedding))
            found_KH = look_up(self.embedding, index.where(inside_K, 0), self._padding)
            return (found_KH * inside_K[:, None],)
        head = TrainingHead(
            self.embedding if self.own_head is None else self.own_head,
            self.bias,
            self._settings.temperature,
            self._settings.autocast or self.embedding.dtype,
        )
        if normalizers_M is None:
            return head.logits(hidden_MH, index)
        return (head.attach(hidden_MH, index, torch.zeros_like(normalizers_M), normalizers_M),)

    def weights(self, model: Any) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """The whole weights of these rows, and the rows."""
        head = model.get_output_embeddings()
        yield model.get_input_embeddings().weight, self.embedding
        if self.own_head is not None:
            yield head.weight, self.own_head
        if self.bias is not None:
            yield head.bias, self.bias


class Layers(nn.Module):
    """Consecutive layers of a model, and its last norm if they are the last."""

    def __init__(
        self, model: Any, first: int, last: int, settings: PolicySettings, mesh: RankMesh | None = None
    ) -> None:
        """Shares layers `first` to `last`, the latter excluded, with the model. Where the ranks of a `mesh` share each
        layer, it has copies that are cut, and whose other parameters are the model's.

        `ConfigError` on all those ranks where what they compute together is not what the layers do.
        """
        super().__init__()
        base = model.base_model
        name, layers = _layer_list(model)
        part = copy.copy(base)
        part._modules = dict(base._modules)
        part.config = copy.deepcopy(base.config)
        part.config.num_hidden_layers = last - first
        if getattr(base.config, "layer_types", None) is not None:
            part.config.layer_types = list(base.config.layer_types[first:last])
        chosen = layers[first:last]
        if mesh is not None and mesh.tensor > 1:
            chosen = [copy.deepcopy(layer, {id(each): each for each in layer.parameters()}) for layer in chosen]
        setattr(part, name, nn.ModuleList(chosen))
        behind = False  # children stand in the order in which they are used
        for other, module in base.named_children():
            behind |= other == name
            is_norm = behind and other != name and any(True for _ in module.parameters())
            if module is model.get_input_embeddings() or (is_norm and last < len(layers)):
                setattr(part, other, nn.Identity())
            elif not behind and first > 0 and isinstance(module, nn.Embedding):
                setattr(part, other, _Nothing(module))  # of positions: the first stage has added it
        self.part = part
        self._autocast = settings.autocast
        self._parts: dict[int, Part] = {}
        self._summed: set[int] = set()
        if mesh is not None and mesh.tensor > 1:
            self._cut(model, mesh)

    def _cut(self, model: Any, mesh: RankMesh) -> None:
        embedding = model.get_input_embeddings().weight.detach()
        probe_1LH = embedding[:_PROBE_TOKENS][None] / embedding[:_PROBE_TOKENS].std()
        with torch.no_grad():
            wanted = self(probe_1LH)
            self._parts, self._summed = cut_layers(
                self.part, model, ranks=mesh.tensor, index=mesh.tensor_index, add_up=mesh.add_up_tensor
            )
            found = self(probe_1LH)
        distance = float((found - wanted).abs().max() / wanted.abs().max())
        if not distance <= _SAME[wanted.dtype if self._autocast is None else self._autocast]:
            raise ConfigError(
                f"tp{mesh.tensor} cannot be: the layers of a {model.config.model_type} model, cut by its plan, compute"
                " something else",
                remedy="Leave tp out of the plan; dp deals the rows of any model.",
            )

    def held(self, whole: Mapping[int, tuple[str, torch.Size]], *, shared: bool) -> Iterator[Held]:
        """Every parameter: what it holds of the model's, whose names and shapes are `whole` by `id`. `shared` says
        that the ranks of a tensor group share these layers."""
        for each in self.parameters():
            part = self._parts.get(id(each))
            if part is None:
                name, shape = whole[id(each)]
                yield Held(name, shape, is_alike=shared, is_part_sum=id(each) in self._summed)
            else:
                name, shape = whole[id(part.whole)]
                yield Held(name, shape, part.first, part.by_columns)

    def forward(self, hidden_NLH: Tensor) -> Tensor:
        """What these layers make of hidden states (N, L, H) of rows padded on the right."""
        with _autocast(hidden_NLH.device, self._autocast):
            found: Tensor = self.part(inputs_embeds=hidden_NLH, use_cache=False).last_hidden_state
        return found


class _Nothing(nn.Module):
    """Zeros in place of an embedding."""

    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self._width, self._dtype = embedding.embedding_dim, embedding.weight.dtype

    def forward(self, ids: Tensor) -> Tensor:
        return torch.zeros(*ids.shape, self._width, dtype=self._dtype, device=ids.device)


class Stage:
    """One rank's layers and words."""

    def __init__(self, model: Any, mesh: RankMesh, settings: PolicySettings) -> None:
        """`model` is one that `check_stages` passes. What other ranks hold of it is freed."""
        whole = {id(each): (name, each.shape) for name, each in model.named_parameters()}
        first, last = cut(model.get_input_embeddings().num_embeddings, mesh.shares)[mesh.share]
        self.words = Words(model, first, last, settings)
        self.layers = Layers(model, *cut(len(_layer_list(model)[1]), mesh.stages)[mesh.stage], settings, mesh)
        parts = [Held(*whole[id(all_words)], first) for all_words, _ in self.words.weights(model)]
        parts += self.layers.held(whole, shared=mesh.tensor > 1)
        for parameter in self.layers.parameters():  # loaded weights are views of a file, which stays mapped with one
            parameter.data = parameter.detach().clone()
        drop_weights(model, self.layers.parameters())
        self.sharded = ShardedModules([self.words, self.layers], mesh, zero=settings.zero)
        order = {name: number for number, (name, _) in enumerate(whole.values())}
        parameters = [*self.words.parameters(), *self.layers.parameters()]
        shards = [shard_of(held, parameter, mesh) for held, parameter in zip(parts, parameters, strict=True)]
        self.shards: list[Shard] = sorted(shards, key=lambda shard: order[shard.name])


def check_stages(model: Any, parallel: ParallelConfig, settings: PolicySettings) -> None:
    """`ConfigError` unless the stages, one after the other, compute what the model does. A rank that holds all of a
    model always does."""
    stages = parallel.pipeline
    if parallel.shares == 1:
        return
    kind = model.config.model_type
    if find_linear_head(model) is None:
        raise _cannot(parallel, f"the logits of a {kind} model are more than a layer on its hidden states")
    name, layers = _layer_list(model)
    if len(layers) < stages:
        raise _cannot(parallel, f"the model has {len(layers)} layers, fewer than the plan has stages")
    if not name:
        raise _cannot(parallel, f"a {kind} model has more than one list of layers")
    embedding = model.get_input_embeddings()
    inputs = (torch.arange(_PROBE_TOKENS, device=embedding.weight.device) % embedding.num_embeddings)[None]
    with torch.no_grad():
        with _autocast(inputs.device, settings.autocast):
            wanted = model.base_model(input_ids=inputs, use_cache=False).last_hidden_state
        hidden = embedding.weight[inputs]
        for first, last in cut(len(layers), stages):
            if hidden.dtype != embedding.weight.dtype:
                raise _cannot(parallel, f"the layers of a {kind} model return another number type than they take")
            try:
                hidden = Layers(model, first, last, settings)(hidden)
            except (TypeError, ValueError, AttributeError) as error:
                raise _cannot(parallel, f"a part of a {kind} model's layers does not run alone") from error
    if not torch.equal(hidden, wanted):
        raise _cannot(parallel, f"a {kind} model computes more than its layers, one after the other")


def cut(count: int, parts: int) -> list[tuple[int, int]]:
    """First and last index, the latter excluded, of each part; later parts are the larger ones: they hold fewer
    micro-batches at once."""
    edges = [part * count // parts for part in range(parts + 1)]
    return list(pairwise(edges))


def _layer_list(model: Any) -> tuple[str, list[Any]]:
    """Name and members of the only list of layers; no name where there are several or none."""
    layers = checkpointing_layers(model.base_model)
    names = [
        name
        for name, module in model.base_model.named_children()
        if isinstance(module, nn.ModuleList) and list(module) == layers
    ]
    return (names[0] if len(names) == 1 else ""), layers


def _autocast(device: torch.device, dtype: torch.dtype | None) -> AbstractContextManager[Any]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


def _cannot(parallel: ParallelConfig, reason: str) -> ConfigError:
    parts = {"pp": parallel.pipeline, "tp": parallel.tensor}
    kinds = [kind for kind, size in parts.items() if size > 1]
    return ConfigError(
        f"{''.join(f'{kind}{parts[kind]}' for kind in kinds)} cannot be: {reason}",
        remedy=f"Leave {' and '.join(kinds)} out of the plan; dp deals the rows of any model.",
    )


def _rows_of(weight: Tensor, first: int, last: int) -> nn.Parameter:
    return nn.Parameter(weight.detach()[first:last].clone(), requires_grad=weight.requires_grad)
