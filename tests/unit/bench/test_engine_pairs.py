"""Pairs of engines: the benchmark's models are as spread as they say, and a small run meets its demands."""

from __future__ import annotations

import pytest
import torch

from p2prl.bench.device_time import CPU
from p2prl.bench.engine_pairs.benchmark import PairsConfig, run_pairs_bench
from p2prl.bench.engine_pairs.engines import ENGINES, VLLM, VOCABULARY, engine, engines_on, model_of_spread
from p2prl.errors import ConfigError
from tests.devices import DEVICES


@pytest.mark.parametrize("spread", [3.0, 18.0])
def test_engines_compute_one_model_differently(spread: float) -> None:
    model = model_of_spread(spread, seed=1)
    ids = torch.arange(48).reshape(2, 24)
    with torch.no_grad():
        logits = {
            name: engine(name, model, "bfloat16", CPU).forward(ids, cache=None, keep=24).float() for name in ENGINES
        }
        exact = model(input_ids=ids).logits
    assert float(exact.std(dim=-1).mean()) == pytest.approx(spread, rel=0.1)
    for name in ENGINES:
        difference = logits[name] - exact
        assert 0.0 < float(difference.std()) < 0.05 * spread
    assert not torch.equal(logits["sdpa"], logits["eager"])
    assert not torch.equal(logits["sdpa"], logits["fp32 head"])
    assert logits["sdpa"].shape[-1] == VOCABULARY


def test_a_gpu_and_the_cpu_sample_for_each_other() -> None:
    assert engines_on(CPU) == [(name, name, CPU) for name in ENGINES]
    cuda = torch.device("cuda", 1)
    assert engines_on(cuda) == [
        ("sdpa on cpu", "sdpa", CPU),
        ("eager on cpu", "eager", CPU),
        ("fp32 head on cpu", "fp32 head", CPU),
        ("sdpa on cuda", "sdpa", cuda),
        ("eager on cuda", "eager", cuda),
        ("fp32 head on cuda", "fp32 head", cuda),
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_small_run_rejects_no_honest_group_and_finds_the_edits(device: str) -> None:
    results = run_pairs_bench(PairsConfig(groups=6, spreads=(6.0,), device=torch.device(device)))
    engines = {shown for shown, _, _ in engines_on(torch.device(device))}
    samplers = {result.sampler for result in results}
    assert samplers >= engines == {result.scorer for result in results}
    assert samplers <= {*engines, VLLM}
    assert len(results) == len(samplers) * len(engines) * 2 * 2
    assert all(result.met for result in results)
    for result in results:
        assert (result.groups, result.tokens, result.rejected) == (6, 6 * 32, 0)
        assert result.edited > 0
        assert result.smallest_edit > 0.9, "more than a nat, computed in another batch"
        assert result.largest_missed == 0.0
        if result.dtype == "float32":
            assert result.mismatched == 0
    assert any(result.mismatched for result in results)


def test_illegal_settings_are_refused() -> None:
    for change in ({"groups": 1}, {"spreads": (0.0,)}):
        with pytest.raises(ConfigError):
            PairsConfig(**change)
