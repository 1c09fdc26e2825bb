"""The engine a volunteer gets: as asked, or the fastest that its machine has."""

from __future__ import annotations

import importlib.util

import pytest
import torch

from p2prl.errors import ConfigError
from p2prl.models.engine_registry import AUTO, ENGINES, choose_engine

HAS_VLLM = importlib.util.find_spec("vllm") is not None
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_auto_takes_vllm_on_cuda_alone_and_says_why() -> None:
    assert choose_engine(AUTO, CPU).name == "transformers"
    assert "not CUDA" in choose_engine(AUTO, CPU).reason
    chosen = choose_engine(AUTO, CUDA)
    assert chosen.name == ("vllm" if HAS_VLLM else "transformers")
    assert ("not installed" in chosen.reason) is not HAS_VLLM


def test_an_engine_is_as_asked_or_refused_before_the_run_is_found() -> None:
    assert {"transformers", "vllm"} <= set(ENGINES.names())
    assert choose_engine("transformers", CUDA).name == "transformers"
    with pytest.raises(ConfigError, match="unknown engine 'vlm'") as unknown:
        choose_engine("vlm", CPU)
    assert "vllm" in unknown.value.remedy
    if not HAS_VLLM:
        with pytest.raises(ConfigError, match="vLLM cannot be imported") as absent:
            choose_engine("vllm", CUDA)
        assert "extra `vllm`" in absent.value.remedy
