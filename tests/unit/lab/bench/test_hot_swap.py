"""The hot-swap benchmark on a model of a few thousand parameters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from p2prl.errors import ConfigError
from p2prl_lab.bench.hot_swap import benchmark
from p2prl_lab.bench.hot_swap.benchmark import SwapBenchConfig, SwapReport, run_swap_bench
from p2prl_lab.bench.hot_swap.part_costs import SHARES, PartCosts, _changed
from tests.devices import DEVICES

REPORT = SwapReport(
    parameters=1,
    patch_bytes=1,
    stalls_s=(0.1, 0.3),
    swaps_s=(0.1, 0.2),
    step_s=0.05,
    busy_step_s=0.05,
    busy_step_longest_s=0.9,
    prepare_s=1.0,
    transfer_mb_s=1.0,
    parts=PartCosts(writes=(), copy_s=1.0, forward_s=1.0, stage_s=1.0, check_s=1.0),
)


@pytest.mark.parametrize("device", DEVICES)
def test_every_swap_is_timed_beside_a_transfer(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    for name, value in (("_WIDTH", 16), ("_LAYERS", 1), ("_VOCABULARY", 32), ("_QUIET_STEPS", 5)):
        monkeypatch.setattr(benchmark, name, value)
    report = run_swap_bench(SwapBenchConfig(swaps=3, device=torch.device(device)))
    assert (len(report.stalls_s), len(report.swaps_s)) == (3, 3)
    assert all(stall >= spent > 0 for stall, spent in zip(report.stalls_s, report.swaps_s, strict=True))
    embedded, norms, matrices, biases = (32 + 128) * 16, 3 * 2 * 16, 12 * 16 * 16, 9 * 16
    assert report.parameters == embedded + norms + matrices + biases
    assert report.transfer_mb_s > 0
    assert [each.changed_share for each in report.parts.writes] == [0.001, 0.01, 0.02, 0.03]
    costs = [each.write_s for each in report.parts.writes]
    parts = report.parts
    assert min(*costs, parts.copy_s, parts.forward_s, parts.stage_s, parts.check_s) > 0


def test_the_longest_stall_decides() -> None:
    assert REPORT.met
    assert not SwapReport(**{**vars(REPORT), "stalls_s": (0.1, 0.31)}).met


def test_an_unknown_word_type_is_refused() -> None:
    with pytest.raises(ConfigError, match="dtype"):
        SwapBenchConfig(dtype="float8")


@pytest.mark.parametrize("share", SHARES)
def test_what_is_written_has_the_share_it_is_shown_with(share: float) -> None:
    words = np.random.default_rng(1).integers(0, 1 << 16, 5000).astype(np.uint16)
    changed = _changed(words, share, np.random.default_rng(2))
    assert np.count_nonzero(changed != words) == round(share * 5000)
    assert (changed >> 1 == words >> 1).all(), "only the lowest bit of the mantissa"
