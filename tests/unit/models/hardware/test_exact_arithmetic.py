"""Every engine and scorer computes in the full precision of its dtype."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.hardware.device_choice import device_class, use_exact_arithmetic
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of


@pytest.fixture
def shortcuts() -> Iterator[None]:
    """What a library or a user may have switched on before."""
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    yield
    use_exact_arithmetic()


def settings() -> tuple[object, ...]:
    matmul = torch.backends.cuda.matmul
    return (
        torch.get_float32_matmul_precision(),
        matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_fp16_reduced_precision_reduction,
    )


@pytest.mark.usefixtures("shortcuts")
def test_an_engine_switches_tf32_and_short_sums_off() -> None:
    assert settings() == ("high", True, True, True, True)
    loaded = tiny_model(seed=1)
    PolicyModel(loaded.model, layout_of(loaded.model, "float32"))
    assert settings() == ("highest", False, False, False, False)


def test_vllm_does_so_too() -> None:
    """It is an extra with an engine of its own, so the line itself is looked for."""
    from pathlib import Path

    from p2prl.models.engines import vllm

    source = (Path(vllm.__file__).parent / "sampler.py").read_text()
    made = source.index("self._policy = VllmPolicy(")
    assert source.index("use_exact_arithmetic()", made) > made


def test_class_of_a_device_names_the_processor() -> None:
    name = device_class(torch.device("cpu"))
    assert name.startswith("cpu ")
    assert name != "cpu "
