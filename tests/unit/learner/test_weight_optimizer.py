"""Optimizers: 16-bit weights follow float32 AdamW, random rounding is unbiased and repeatable, states survive."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from p2prl.errors import ConfigError
from p2prl.learner.training import bf16_adamw
from p2prl.learner.training.bf16_adamw import Bf16AdamW, PartOfParameter
from p2prl.learner.training.memory_config import MemoryConfig, OptimizerStates, Precision
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.weight_optimizer import FUSED_FROM_PARAMETERS, WeightOptimizer

CONFIG = OptimizerConfig(learning_rate=1e-5, beta1=0.9, beta2=0.99, weight_decay=0.1)
STEPS = 60


def weights(count: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    generator = torch.Generator().manual_seed(3)
    return nn.Parameter((0.5 + torch.rand(count, generator=generator)).to(torch.bfloat16).to(dtype))


def gradient(step: int, count: int) -> Tensor:
    """The same direction at every step, with noise."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.linspace(-1, 1, count).sign() + 0.3 * torch.randn(count, generator=generator)


def train(parameter: nn.Parameter, optimizer: WeightOptimizer, steps: range) -> None:
    for step in steps:
        parameter.grad = gradient(step, parameter.numel()).to(parameter.dtype)
        optimizer.step(CONFIG.learning_rate, number=step)


def reference(count: int) -> Tensor:
    """torch's AdamW in float32."""
    parameter = weights(count)
    adam = torch.optim.AdamW([parameter], lr=1e-5, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(STEPS):
        parameter.grad = gradient(step, count).to(torch.bfloat16).float()
        adam.step()
    return parameter.detach()


def test_rounding_to_nearest_would_lose_these_steps() -> None:
    moved = reference(500) - weights(500).detach()
    ulp = 2.0**-8  # of bfloat16 between .5 and 1
    assert 3e-4 < float(moved.abs().mean()) < ulp / 4


def test_kahan_summation_follows_float32() -> None:
    parameter = weights(500, torch.bfloat16)
    optimizer = WeightOptimizer([parameter], CONFIG, precision="bf16_kahan")
    train(parameter, optimizer, range(STEPS))
    exact = parameter.detach().float() + optimizer.tensors()["0.rest"].float()
    wanted = reference(500) - weights(500).detach()
    assert float((exact - reference(500)).abs().mean()) < 0.05 * float(wanted.abs().mean())


def test_stochastic_rounding_moves_as_far_as_float32_on_average() -> None:
    count = 40_000
    parameter = weights(count, torch.bfloat16)
    train(parameter, WeightOptimizer([parameter], CONFIG, precision="bf16_stochastic"), range(STEPS))
    direction = torch.linspace(-1, 1, count).sign()
    seen = (parameter.detach().float() - weights(count).detach()) * direction
    wanted = (reference(count) - weights(count).detach()) * direction
    error = float(seen.std()) / math.sqrt(count)
    assert float(seen.mean()) == pytest.approx(float(wanted.mean()), abs=5 * error)
    assert abs(float(wanted.mean())) > 7 * error


def test_random_rounding_depends_on_the_step_and_the_parameter_alone() -> None:
    made = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        parameter = weights(1000, torch.bfloat16)
        train(parameter, WeightOptimizer([parameter], CONFIG, precision="bf16_stochastic"), range(5))
        made.append(parameter.detach())
    assert torch.equal(*made)


def test_two_parameters_round_independently() -> None:
    pair = [nn.Parameter(torch.ones(4000, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = Bf16AdamW(pair, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0, kahan=False)
    for parameter in pair:
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    up = [parameter.detach() == 1.0 for parameter in pair]
    assert 0.4 < float((up[0] == up[1]).float().mean()) < 0.9
    assert not torch.equal(*up)


@pytest.mark.parametrize("precision", ["fp32", "bf16_stochastic", "bf16_kahan"])
def test_restored_state_takes_the_same_next_steps(precision: Precision) -> None:
    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    straight = weights(300, dtype)
    optimizer = WeightOptimizer([straight], CONFIG, precision=precision)
    train(straight, optimizer, range(4))
    resumed = nn.Parameter(straight.detach().clone())
    again = WeightOptimizer([resumed], CONFIG, precision=precision)
    again.restore({name: tensor.clone() for name, tensor in optimizer.tensors().items()})
    train(straight, optimizer, range(4, 8))
    train(resumed, again, range(4, 8))
    assert torch.equal(straight, resumed)


def test_large_models_take_the_fused_step_with_equal_results_after_a_restart() -> None:
    made = []
    for interrupted in (False, True):
        parameter = weights(FUSED_FROM_PARAMETERS)
        optimizer = WeightOptimizer([parameter], CONFIG)
        train(parameter, optimizer, range(2))
        if interrupted:
            state = optimizer.tensors()
            optimizer = WeightOptimizer([parameter], CONFIG)
            optimizer.restore(state)
        train(parameter, optimizer, range(2, 4))
        made.append(parameter.detach())
    assert torch.equal(*made)
    plain = weights(FUSED_FROM_PARAMETERS)
    adam = torch.optim.AdamW([plain], lr=1e-5, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(4):
        plain.grad = gradient(step, FUSED_FROM_PARAMETERS)
        adam.step()
    torch.testing.assert_close(made[0], plain.detach(), rtol=1e-6, atol=1e-7)


def test_precision_may_change_between_starts() -> None:
    parameter = weights(300)
    optimizer = WeightOptimizer([parameter], CONFIG)
    train(parameter, optimizer, range(3))
    narrow = nn.Parameter(parameter.detach().to(torch.bfloat16))
    again = WeightOptimizer([narrow], CONFIG, precision="bf16_kahan")
    again.restore(optimizer.tensors())
    train(narrow, again, range(3, 4))
    assert again.tensors()["0.exp_avg"].dtype == torch.bfloat16
    assert float(again.tensors()["0.step"]) == 4


def test_low_bit_states_have_no_kahan_summation() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        MemoryConfig(precision="bf16_kahan", optimizer_states="8bit")


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore")  # torchao's own, at import and at its first step
@pytest.mark.parametrize("precision", ["fp32", "bf16_stochastic"])
def test_low_bit_states_survive_a_checkpoint(precision: Precision, tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    from safetensors.torch import load_file, save_file

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    states: OptimizerStates = "8bit"
    straight = weights(8192, dtype)
    optimizer = WeightOptimizer([straight], CONFIG, precision=precision, states=states)
    train(straight, optimizer, range(3))
    saved = optimizer.tensors()
    assert saved["0.exp_avg.codes"].dtype == torch.uint8
    save_file(saved, tmp_path / "optimizer.safetensors")
    resumed = nn.Parameter(straight.detach().clone())
    again = WeightOptimizer([resumed], CONFIG, precision=precision, states=states)
    again.restore(load_file(tmp_path / "optimizer.safetensors"))
    torch.manual_seed(9)  # what else drew random numbers does not matter
    train(straight, optimizer, range(3, 6))
    train(resumed, again, range(3, 6))
    assert torch.equal(straight, resumed)
    with pytest.raises(ConfigError, match="written with optimizer_states = '8bit'"):
        WeightOptimizer([weights(8192)], CONFIG).restore(saved)
    if precision == "fp32":
        wanted = reference(8192) - weights(8192).detach()
        near = nn.Parameter(weights(8192).detach())
        train(near, WeightOptimizer([near], CONFIG, states=states), range(STEPS))
        assert float((near.detach() - reference(8192)).norm() / wanted.norm()) < 0.1


def test_a_missing_library_is_named_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torchao.optim", None)
    with pytest.raises(ConfigError, match="torchao") as caught:
        WeightOptimizer([weights(300)], CONFIG, states="8bit")
    assert "pip install -c constraints.txt '.[lowbit]'" in caught.value.remedy


@pytest.mark.parametrize("kahan", [False, True])
def test_parts_of_a_parameter_round_as_the_whole(kahan: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they are cut, also within a block of random bits."""
    monkeypatch.setattr(bf16_adamw, "_BLOCK", 64)
    generator = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=generator).bfloat16() for shape in ((20, 10), (7,))]
    gradients = [torch.randn(each.shape, generator=generator).bfloat16() for each in start]
    options: Any = {"lr": 1e-2, "betas": (0.9, 0.99), "weight_decay": 0.1, "kahan": kahan}

    whole = [each.clone().requires_grad_() for each in start]
    optimizer = Bf16AdamW(whole, **options)
    cuts = [(0, 0, 3), (0, 3, 13), (0, 13, 13), (0, 13, 20), (1, 0, 7)]
    pieces = [start[number][a:b].clone().requires_grad_() for number, a, b in cuts]
    widths = [10, 1]
    places = [PartOfParameter(n, a * widths[n], start[n].numel()) for n, a, _ in cuts]
    in_parts = Bf16AdamW(pieces, parts=places, **options)
    for _ in range(3):
        for parameter, gradient in zip(whole, gradients, strict=True):
            parameter.grad = gradient.clone()
        for piece, (number, a, b) in zip(pieces, cuts, strict=True):
            piece.grad = gradients[number][a:b].clone()
        optimizer.step()
        in_parts.step()
    for piece, (number, a, b) in zip(pieces, cuts, strict=True):
        assert torch.equal(piece, whole[number][a:b])
        for name in ("exp_avg", "exp_avg_sq", *(("rest",) if kahan else ())):
            assert torch.equal(in_parts.state[piece][name], optimizer.state[whole[number]][name][a:b])
    assert not torch.equal(whole[0], start[0])


@pytest.mark.parametrize("kahan", [True, False])
def test_columns_of_a_parameter_round_as_the_whole(kahan: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.learner.training.bf16_adamw._BLOCK", 64)  # over many blocks, which end inside rows
    rows, columns = 11, 30
    options: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.99), "weight_decay": 0.1, "kahan": kahan}
    whole = weights(rows * columns, torch.bfloat16)
    whole.data = whole.data.reshape(rows, columns)
    cuts = [(0, 12), (12, 13), (13, 30)]
    pieces = [nn.Parameter(whole.detach()[:, a:b].T.contiguous()) for a, b in cuts]
    parts = [PartOfParameter(number=0, first=a * rows, elements=rows * columns, rows=rows) for a, _ in cuts]
    optimizer, in_columns = Bf16AdamW([whole], **options), Bf16AdamW(pieces, parts=parts, **options)
    for step in range(3):
        whole.grad = gradient(step, rows * columns).to(torch.bfloat16).reshape(rows, columns)
        for piece, (a, b) in zip(pieces, cuts, strict=True):
            piece.grad = whole.grad[:, a:b].T.contiguous()
        optimizer.step()
        in_columns.step()
    for piece, (a, b) in zip(pieces, cuts, strict=True):
        assert torch.equal(piece, whole[:, a:b].T)
        for name in ("exp_avg", "exp_avg_sq", *(("rest",) if kahan else ())):
            assert torch.equal(in_columns.state[piece][name], optimizer.state[whole][name][:, a:b].T)
