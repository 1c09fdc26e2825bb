"""The engine a volunteer gets: as asked, or the fastest that its machine has."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
import torch

from p2prl.errors import ConfigError, MachineError
from p2prl.models.engines import registry as engine_registry
from p2prl.models.engines.engine_names import AUTO, ChosenEngine
from p2prl.models.engines.registry import ENGINES, build_sampler, choose_engine

HAS_VLLM = importlib.util.find_spec("vllm") is not None
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def test_auto_takes_vllm_on_cuda_alone_and_says_why() -> None:
    assert choose_engine(AUTO, CPU).name == "transformers"
    assert "not CUDA" in choose_engine(AUTO, CPU).reason
    chosen = choose_engine(AUTO, CUDA)
    assert chosen.name == ("vllm" if HAS_VLLM else "transformers")
    assert ("not installed" in chosen.reason) is not HAS_VLLM
    assert chosen.fallback == ("transformers" if HAS_VLLM else "")
    assert choose_engine("transformers", CUDA).fallback == "", "as asked, or not at all"


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


class _Engines:
    """One engine that cannot run any model, and one that gives the arguments it was built with."""

    def get(self, name: str) -> Any:
        return self._refuse if name == "narrow" else lambda *args, **options: (name, *args, options["memory_bytes"])

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise MachineError("narrow cannot run this model", remedy="Join with another engine.")


def test_an_engine_taken_by_default_is_replaced_when_it_cannot_run_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_registry, "ENGINES", _Engines())
    notices: list[str] = []
    run: Any = "the run"

    def built(engine: ChosenEngine) -> Any:
        return build_sampler(engine, run, device=CPU, dtype="float32", memory_bytes=7, on_notice=notices.append)

    assert built(ChosenEngine("wide", "")) == ("wide", "the run", 7)
    assert notices == []
    assert built(ChosenEngine("narrow", "", fallback="wide")) == ("wide", "the run", 7)
    assert notices == ["narrow cannot run this model. Sampling with wide instead."]
    with pytest.raises(MachineError, match="narrow cannot"):
        built(ChosenEngine("narrow", "asked"))
