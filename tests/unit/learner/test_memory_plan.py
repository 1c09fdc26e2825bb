"""Memory model and plan: predictions against counted tensors, and choices against known machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config

from p2prl.errors import ConfigError, MachineError
from p2prl.learner.training.memory_config import MemoryConfig, Precision
from p2prl.learner.training.memory_model import ModelShape, TrainingSetup, memory_needs, shape_of, token_bytes
from p2prl.learner.training.memory_plan import plan_memory
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.models.hardware.device_choice import container_room, free_memory
from p2prl.models.logprobs.policy_forward import PolicyForward
from p2prl.models.logprobs.scoring_model import ScoringModel

QWEN_7B = ModelShape(
    parameters=7_615_616_512, vocabulary=152_064, hidden=3584, intermediate=18_944, layers=28, query=3584
)
CUDA = TrainingSetup(precision="bf16", replay_bytes=2, published_bytes=0, device_type="cuda")


def llama() -> Any:
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


def gpt2() -> Any:
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=300, n_embd=128, n_layer=4, n_head=4, n_positions=128, bos_token_id=0, eos_token_id=0)
    ).eval()


def saved_bytes(model: Any, precision: Precision, *, checkpointing: bool, tokens: int) -> int:
    """Bytes of distinct tensors that autograd keeps for one row, without the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, Any] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage  # held, so that its address is not used again
        return tensor

    forward = PolicyForward(ScoringModel(model, temperature=1.0))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward.score([((1,), tuple(range(2, tokens + 2)))], graph=True, checkpointing=checkpointing)
    assert result.graph is not None
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("make", [llama, gpt2])
@pytest.mark.parametrize("precision", ["fp32", "bf16_stochastic"])
def test_predicted_activations_are_those_that_are_kept(make: Any, precision: Precision) -> None:
    tokens, model = 100, make()
    if precision != "fp32":
        model = model.to(torch.bfloat16)
    shape = shape_of(model.config, 1)
    layer = token_bytes(replace(shape, layers=1), precision, checkpointing=False) / 2
    seen = saved_bytes(model, precision, checkpointing=False, tokens=tokens) / tokens
    assert 0.75 < seen / (shape.layers * layer) < 1.1
    kept = saved_bytes(model, precision, checkpointing=True, tokens=tokens) / tokens
    assert kept < 1.2 * shape.layers * shape.hidden * 4 + 0.2 * layer


def test_shapes_are_read_from_configurations() -> None:
    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
    )
    shape = shape_of(config, 494_032_768)
    assert shape == ModelShape(
        parameters=494_032_768, vocabulary=151_936, hidden=896, intermediate=4864, layers=24, query=896
    )
    assert shape_of(gpt2().config, 1).intermediate == 4 * 128
    config.final_logit_softcapping = 30.0
    assert shape_of(config, 1).own_logits
    config.tie_word_embeddings = True
    assert shape_of(config, 1).tied


def test_needs_of_a_7b_model_are_those_on_paper() -> None:
    parameters = QWEN_7B.parameters
    rule = MicroBatchRule(tokens=1024, checkpointing=True)
    needs = memory_needs(QWEN_7B, CUDA, rule)
    assert needs.weights == 6 * parameters  # float32 masters and their 16-bit copies
    assert needs.gradients == 4 * parameters
    assert needs.optimizer == 8 * parameters
    assert needs.replay == 2 * (parameters + 16_384 * 3 * (3_584 + 18_944)), "weights, and a batch in one layer"
    assert (needs.reference, needs.publishing) == (0, 0)
    assert needs.total == sum(
        (needs.weights, needs.gradients, needs.optimizer, needs.replay, needs.scratch, needs.activations)
    )
    narrow = memory_needs(QWEN_7B, replace(CUDA, precision="bf16_stochastic", states="8bit"), rule)
    assert narrow.weights + narrow.gradients + narrow.optimizer == pytest.approx(6.03 * parameters, rel=1e-3)
    kahan = memory_needs(QWEN_7B, replace(CUDA, precision="bf16_kahan"), rule)
    assert kahan.weights + kahan.gradients + kahan.optimizer == 10 * parameters
    assert memory_needs(QWEN_7B, replace(CUDA, reference=True), rule).reference == 4 * parameters
    assert memory_needs(replace(QWEN_7B, tied=True), CUDA, rule).total == needs.total, "added up where they are kept"
    narrow_tied = memory_needs(replace(QWEN_7B, tied=True), replace(CUDA, precision="bf16_stochastic"), rule)
    alone = memory_needs(QWEN_7B, replace(CUDA, precision="bf16_stochastic"), rule)
    assert narrow_tied.total - alone.total == 2 * 152_064 * 3_584, "the output's gradient waits for the input's"
    capped = replace(QWEN_7B, own_logits=True)
    assert memory_needs(capped, CUDA, rule).activations - needs.activations == pytest.approx(
        1024 * 152_064 * 4 * 3.3, rel=1e-6
    )


def test_ranks_share_what_is_trained_and_hold_some_weights_whole() -> None:
    parameters, rule = QWEN_7B.parameters, MicroBatchRule(tokens=1024, checkpointing=True)
    alone = memory_needs(QWEN_7B, replace(CUDA, precision="fp32", reference=True), rule)
    shared = replace(CUDA, precision="fp32", reference=True, parallel=ParallelConfig(plan="dp4"))
    two = memory_needs(QWEN_7B, shared, rule)
    three = memory_needs(QWEN_7B, replace(shared, parallel=ParallelConfig(plan="dp4", zero=3)), rule)
    share = -(-parameters // 4)
    assert (two.gradients, two.optimizer) == (three.gradients, three.optimizer) == (4 * share, 8 * share)
    assert two.weights == 4 * (share + parameters), "its share, and all of them between the passes"
    embeddings = 2 * 152_064 * 3_584
    gathered = embeddings + 2 * (parameters - embeddings) // QWEN_7B.layers
    assert three.weights == 4 * (share + gathered), "its share, the embeddings, and the layer at work with the next"
    assert two.reference == three.reference == 4 * (share + gathered) < alone.reference
    assert two.activations == alone.activations, "each has micro-batches of its own"
    assert two.scratch - alone.scratch == 4 * embeddings, "the gradient of embedding and head"
    sent = 4 * (embeddings + embeddings // 4)
    assert two.sharing == sent - two.activations > 0, "a copy to send, and a part of the sum, where activations were"
    assert three.sharing == 0, "nor are gathered weights there"
    many = replace(rule, tokens=1 << 15)
    assert memory_needs(QWEN_7B, shared, many).sharing == 0, "the activations were larger"
    assert alone.sharing == 0


def test_tokens_that_just_fit_take_no_more_than_the_memory() -> None:
    shared = TrainingSetup(replay_bytes=0, published_bytes=0, parallel=ParallelConfig(plan="dp2"))
    for free in (4.2e9, 6e9):
        found = plan_memory(SMALL, shared, MemoryConfig(), free_bytes=int(free), longest_row=1)
        most = memory_needs(SMALL, shared, MicroBatchRule(tokens=found.most_tokens)).total
        more = memory_needs(SMALL, shared, MicroBatchRule(tokens=found.most_tokens + 1)).total
        assert most <= free < more


def test_a_cpu_has_gaps_between_activations() -> None:
    rule = MicroBatchRule(tokens=1000)
    seen = memory_needs(SMALL, TrainingSetup(), rule).activations
    assert seen == pytest.approx(1300 * token_bytes(SMALL, "fp32", checkpointing=False))


def test_stages_share_layers_and_words() -> None:
    parameters, rule = QWEN_7B.parameters, MicroBatchRule(tokens=1024, checkpointing=True)
    alone = memory_needs(QWEN_7B, replace(CUDA, precision="fp32", reference=True), rule)
    setup = replace(CUDA, precision="fp32", reference=True)
    staged = memory_needs(QWEN_7B, replace(setup, parallel=ParallelConfig(plan="pp4")), rule)
    share = -(-parameters // 4)
    assert (staged.weights, staged.gradients, staged.optimizer) == (4 * share, 4 * share, 8 * share)
    assert staged.reference == 4 * share, "no stage ever has more"
    assert staged.scratch == alone.scratch, "each adds up the gradient of its words where it is kept"
    layers = memory_needs(QWEN_7B, replace(setup, parallel=ParallelConfig(plan="pp2tp2")), rule)
    assert (layers.weights, layers.gradients, layers.optimizer) == (4 * share, 4 * share, 8 * share)
    assert staged.activations == alone.activations, "as many micro-batches at once as stages, in a share of the layers"
    both = memory_needs(QWEN_7B, replace(setup, parallel=ParallelConfig(plan="dp2pp2")), rule)
    assert both.weights == 4 * (share + -(-parameters // 2)), "its share, and its stage whole between the passes"
    three = memory_needs(QWEN_7B, replace(setup, parallel=ParallelConfig(plan="dp2pp2", zero=3)), rule)
    assert 4 * share < three.weights < both.weights


SMALL = ModelShape(parameters=123_000_000, vocabulary=151_936, hidden=640, intermediate=1792, layers=6, query=640)


def plan(free_gb: float, *, longest: int = 300, shape: ModelShape = SMALL, **config: Any) -> Any:
    return plan_memory(
        shape, TrainingSetup(), MemoryConfig(**config), free_bytes=int(free_gb * 1e9), longest_row=longest
    )


def test_a_roomy_machine_gets_the_most_tokens_and_no_checkpointing() -> None:
    assert plan(23).rule == MicroBatchRule(tokens=2048)
    assert plan(23).most_tokens > 2048
    assert plan(23, micro_batch_tokens=777).rule.tokens == 777
    assert plan(23, micro_batch_tokens=777).asks_tokens
    assert not plan(23).asks_tokens
    assert not plan(23).asks_checkpointing


def test_less_memory_means_fewer_tokens_then_checkpointing_then_a_refusal() -> None:
    seen = []
    for free_gb in (23.0, 4.7, 4.4, 4.2):
        chosen = plan(free_gb)
        assert chosen.needs.total <= 0.9 * free_gb * 1e9
        seen.append((chosen.rule.tokens, chosen.rule.checkpointing))
    assert seen[0] == (2048, False)
    assert 1024 <= seen[1][0] < 2048
    assert seen[-1][1]
    with pytest.raises(MachineError, match=r"training needs 3\.\d GB with one completion at a time") as caught:
        plan(3.0)
    for word in ('optimizer_states = "8bit"', 'precision = "bf16_stochastic"', "shorter completions"):
        assert word in caught.value.remedy
    assert 'checkpointing = "on"' not in caught.value.remedy  # it is on already
    with pytest.raises(MachineError) as caught:
        plan(3.0, checkpointing="off")
    assert 'checkpointing = "on"' in caught.value.remedy


def test_a_limit_counts_as_all_the_memory_there_is() -> None:
    with pytest.raises(MachineError):
        plan(23, limit_gb=3.0)
    assert plan(23, limit_gb=4.2).rule == plan(4.2).rule


def test_one_row_is_always_allowed() -> None:
    assert plan(23, longest=5000).rule.tokens == 5000
    assert plan(23, longest=300, micro_batch_tokens=10).rule.tokens == 300


def test_checkpointing_can_be_asked_for() -> None:
    assert plan(23, checkpointing="on").rule == MicroBatchRule(tokens=2048, checkpointing=True)
    assert not plan(5, checkpointing="off").rule.checkpointing


def test_a_tiny_model_trains_in_one_piece() -> None:
    tiny = ModelShape(parameters=59_040, vocabulary=17, hidden=48, intermediate=192, layers=2, query=48)
    assert plan(1, shape=tiny, longest=20).rule.tokens > 16 * 8 * 30


def test_the_text_names_every_part() -> None:
    text = plan(23).text(23_000_000_000, "cpu")
    for word in (
        "needed, 23.0 GB free on cpu",
        "weights",
        "gradients",
        "optimizer",
        "replay",
        "activations",
        "2,048 tokens",
    ):
        assert word in text
    assert "reference" not in text


@pytest.mark.parametrize(
    ("device", "engine", "expected"),
    [
        ("cuda", "bfloat16", "bf16"),
        ("cuda", "float32", "fp32"),
        ("cpu", "bfloat16", "fp32"),
        ("mps", "float16", "fp32"),
    ],
)
def test_automatic_precision(device: str, engine: str, expected: str) -> None:
    assert MemoryConfig().precision_on(device, engine) == expected
    assert MemoryConfig(precision="bf16_kahan").precision_on(device, engine) == "bf16_kahan"


@pytest.mark.parametrize(
    ("name", "value"), [("micro_batch_tokens", -1), ("limit_gb", -0.5), ("limit_gb", float("inf"))]
)
def test_impossible_settings_are_named(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        MemoryConfig(**{name: value})  # type: ignore[arg-type]


def test_a_container_has_less_than_its_machine(tmp_path: Path) -> None:
    limit, used = tmp_path / "memory.max", tmp_path / "memory.current"
    assert container_room(limit, used, "inactive_file") > 1 << 60
    limit.write_text("max\n")
    used.write_text("5\n")
    assert container_room(limit, used, "inactive_file") > 1 << 60
    limit.write_text("1000\n")
    used.write_text("400\n")
    assert container_room(limit, used, "inactive_file") == 600
    used.write_text("1400\n")
    assert container_room(limit, used, "inactive_file") == 0
    (tmp_path / "memory.stat").write_text("active_file 50\ninactive_file 700\ntotal_inactive_file 900\n")
    assert container_room(limit, used, "inactive_file") == 300, "cached files make room"
    assert 0 < free_memory(torch.device("cpu")) < 1 << 50
