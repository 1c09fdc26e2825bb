"""Memory model of a training step: what a learner will hold, from the shape of its model and its settings.

Pure arithmetic. The factors were measured by counting the tensors that autograd saves for Qwen2, Llama and GPT-2
models of 128 to 896 hidden units; `docs/benchmarks/memory.md` compares predictions with measured peaks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from p2prl.learner.training.memory_config import PURE_BF16, OptimizerStates, Precision
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.models.engines.transformers.batching import DEFAULT_BATCH_TOKENS

_SAVED_BYTES: dict[Precision, float] = {"fp32": 4.4, "bf16": 2.8, "bf16_stochastic": 2.2, "bf16_kahan": 2.2}
"""Bytes for each saved element of a layer. Measured: 3.7-4.4 in float32, 2.4-2.7 with autocast, whose norms stay in
float32, 2.0-2.2 in bfloat16."""

_LOW_BIT_BYTES = 2 * (1 + 4 / 256)
"""Two means of a byte each, with a float32 scale for every 256."""

_KEPT_LOGITS = 3.3
"""Copies of the logits that a model computing its own holds at once, in float32."""

_SCRATCH_BYTES = {"cpu": 60_000_000}
"""Tiles of logits, and libraries that are loaded with the first model."""

_LARGE_SCRATCH_BYTES = 1_500_000_000
"""The same with a GPU's larger tiles, and the workspaces of its libraries."""

_GAPS = {"cpu": 1.3}
"""Memory that activations take, as a multiple of their bytes: a CPU's allocator leaves gaps between tensors of changing
sizes. Elsewhere torch's own allocator has the share of the memory that a plan leaves free."""

_LOGIT_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Settings of transformers models that change logits after the head. What a model does is found when it is built."""

_VALUE_COPIES = 5
"""Of the value head: weights, average, gradient and two means."""

_VALUE_STATES = 4
"""Hidden states in float32 that the value head holds at once for each token: normalized ones, their gradients, and what
autograd keeps in between."""

_PUBLISHED_COPIES = 2
"""A version's bytes and its patch, held in the machine's memory while it is published."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """Sizes of a decoder-only transformer."""

    parameters: int
    vocabulary: int
    hidden: int
    intermediate: int
    """Width of the feed-forward layer."""
    layers: int
    query: int
    """Width of all query heads together."""
    adapters: int = 0
    """Parameters that are trained, if those of adapters alone."""
    own_logits: bool = False
    """Its logits are more than a linear layer, so those of a micro-batch are held at once."""
    tied: bool = False
    """Its output layer is the embedding, whose gradient from the output waits for the one from the input."""

    @property
    def trained(self) -> int:
        """Parameters that are trained."""
        return self.adapters or self.parameters

    @property
    def replay_elements(self) -> int:
        """Elements that one token needs in a forward pass alone: hidden states, and the widest layer's products."""
        return 3 * self.hidden + 3 * self.intermediate

    @property
    def layer_elements(self) -> int:
        """Elements that one layer saves for the backward pass, for each token: the inputs of two norms and what they
        return, queries, keys and values repeated for each head, the attention's result, and four of the feed-forward
        width."""
        return 6 * self.hidden + 5 * self.query + 4 * self.intermediate


def shape_of(config: Any, parameters: int, *, adapters: int = 0) -> ModelShape:
    """The shape of a transformers configuration; `adapters` is 0 where all parameters are trained."""
    text = config.get_text_config()
    hidden: int = text.hidden_size
    heads: int = text.num_attention_heads
    head: int = getattr(text, "head_dim", None) or hidden // heads
    return ModelShape(
        parameters=parameters,
        adapters=adapters,
        vocabulary=text.vocab_size,
        hidden=hidden,
        intermediate=getattr(text, "intermediate_size", None) or getattr(text, "n_inner", None) or 4 * hidden,
        layers=text.num_hidden_layers,
        query=heads * head,
        own_logits=any(getattr(text, name, None) for name in _LOGIT_SETTINGS),
        tied=bool(getattr(text, "tie_word_embeddings", False)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSetup:
    """Settings that memory depends on."""

    precision: Precision = "fp32"
    states: OptimizerStates = "full"
    reference: bool = False
    """Whether there is a reference policy."""
    replay_bytes: int = 4
    """Bytes of a weight in the engine that replays groups; 0 without one on this device."""
    published_bytes: int = 2
    """Bytes of a weight as it is published; 0 when the device has a memory of its own."""
    device_type: str = "cpu"
    value_head: bool = False
    """Whether there is a value head."""
    reward_model_bytes: int = 0
    """Weights of the run's reward model; 0 without one."""
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    """Processes that share the training state. Each needs what `memory_needs` says, and has a memory of its own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeeds:
    """Bytes on the training device, by purpose."""

    weights: int
    """In training; with autocast also their 16-bit copies."""
    gradients: int
    optimizer: int
    reference: int
    value: int
    """The value head with its optimizer, and the hidden states it reads."""
    replay: int
    """The engine that replays groups: its weights, and one batch, since it runs beside training."""
    reward_model: int
    """Weights of the run's reward model, which reads one text at a time."""
    publishing: int
    """A new version and its patch."""
    scratch: int
    """Gradients of embedding and head from one micro-batch where they are not added up in place, and tiles."""
    activations: int
    sharing: int
    """What else there is while ranks share the gradients of embedding and head. Activations are free by then, and so
    are gathered weights with `zero` 3: it is what exceeds them."""

    @property
    def total(self) -> int:
        """Everything together."""
        return sum(getattr(self, each.name) for each in fields(self))


def memory_needs(shape: ModelShape, setup: TrainingSetup, rule: MicroBatchRule) -> MemoryNeeds:
    """What a training step will hold at its peak, on each rank.

    A pipeline's first stage has as many micro-batches at once as there are stages, each in a share of the layers: the
    activations are those of one micro-batch in all layers.
    """
    width = 2 if setup.precision in PURE_BF16 else 4
    states = _LOW_BIT_BYTES if setup.states == "8bit" else 2 * width
    rest = 2 if setup.precision == "bf16_kahan" else 0
    copies = 2 if setup.precision == "bf16" else 0
    parallel = setup.parallel
    ranks, gathered = parallel.ranks, _gathered(shape, parallel)
    reference = -(-shape.trained // ranks) + _gathered(shape, replace(parallel, zero=3))
    rounded = gathered or -(-shape.parameters // parallel.shares)
    dropped = gathered * width if parallel.zero == 3 else 0
    activations = int(rule.tokens * activation_bytes(shape, setup, checkpointing=rule.checkpointing))
    return MemoryNeeds(
        weights=-(-shape.parameters // ranks) * width + gathered * width + rounded * copies,
        gradients=-(-shape.trained // ranks) * width,
        optimizer=int(-(-shape.trained // ranks) * (states + rest)),
        reference=reference * width if setup.reference else 0,
        value=_VALUE_COPIES * 4 * (shape.hidden + 1) + rule.tokens * value_bytes(shape) if setup.value_head else 0,
        replay=(shape.parameters + DEFAULT_BATCH_TOKENS * shape.replay_elements) * setup.replay_bytes,
        reward_model=setup.reward_model_bytes,
        publishing=shape.parameters * setup.published_bytes * _PUBLISHED_COPIES,
        scratch=_word_gradients(shape, parallel, width) + _SCRATCH_BYTES.get(setup.device_type, _LARGE_SCRATCH_BYTES),
        activations=activations,
        sharing=max(0, _sent_gradients(shape, parallel) - activations - dropped),
    )


def _word_gradients(shape: ModelShape, parallel: ParallelConfig, width: int) -> int:
    """Bytes of gradients of embedding and head beside those that are kept."""
    if shape.adapters:
        return 0
    one = shape.vocabulary * shape.hidden // parallel.shares
    if parallel.data > 1:
        return one * (1 if shape.tied else 2) * width
    if width == 4:  # they are added up where they are kept, unless a model's own logits are computed
        return one * width if shape.own_logits else 0
    return one * width * (2 if shape.tied else 1)


def _sent_gradients(shape: ModelShape, parallel: ParallelConfig) -> int:
    """Bytes of a copy of the gradients of embedding and head that is sent, and of the rank's part of the sum, both in
    float32."""
    if shape.adapters or parallel.data == 1:
        return 0
    words = shape.vocabulary * shape.hidden // parallel.shares * (1 if shape.tied else 2)
    return 4 * (words + words // parallel.data)


def _gathered(shape: ModelShape, parallel: ParallelConfig) -> int:
    """Weights that a rank holds whole at once, beside its share: of its stage, or of some layers."""
    if parallel.data == 1:
        return 0
    of_stage = -(-shape.parameters // parallel.shares)
    if parallel.zero == 2:
        return of_stage
    embeddings = shape.vocabulary * shape.hidden * (1 if shape.tied else 2)
    layers = 2 * (shape.parameters - embeddings) // shape.layers
    return min(of_stage, embeddings // parallel.shares + layers // parallel.tensor)


def value_bytes(shape: ModelShape) -> int:
    """Bytes of a value head for each token of a micro-batch."""
    return _VALUE_STATES * 4 * shape.hidden


def activation_bytes(shape: ModelShape, setup: TrainingSetup, *, checkpointing: bool) -> float:
    """Memory that the activations of each token of a micro-batch take."""
    return token_bytes(shape, setup.precision, checkpointing=checkpointing) * _GAPS.get(setup.device_type, 1.0)


def token_bytes(shape: ModelShape, precision: Precision, *, checkpointing: bool) -> float:
    """Bytes of activations for each token of a micro-batch."""
    layer = shape.layer_elements * _SAVED_BYTES[precision]
    # One more layer is in flight: its gradients, or with checkpointing what is computed again.
    kept = shape.layers * shape.hidden * 4 + 2 * layer if checkpointing else (shape.layers + 1) * layer
    return kept + (shape.vocabulary * 4 * _KEPT_LOGITS if shape.own_logits else 0)
