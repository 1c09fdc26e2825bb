"""The ranks benchmark on a small model: its figures are those of a plan beside one process."""

from __future__ import annotations

import pytest

from p2prl.bench.ranks.benchmark import RanksBenchConfig
from p2prl.errors import ConfigError
from p2prl.learner.training.parallel_config import ParallelConfig
from tests.loopback.timed_ranks import timed_in_fork

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]


def test_a_plan_is_measured_beside_one_process() -> None:
    config = {"plans": ("1", "pp2"), "vocabulary": 600, "groups": 2, "completions": 2, "tokens": 8, "updates": 2}
    single, staged = timed_in_fork("bench", config)
    assert (single["plan"], single["cpu_s_of_single"], single["bytes_of_single"]) == ("1", 1.0, 1.0)
    assert (single["gradient_error_max"], single["words_within_1e5"], single["same_bytes"]) == (0.0, 1.0, True)
    assert staged["plan"] == "pp2"
    assert staged["same_bytes"]
    assert 0.0 < staged["gradient_error_max"] <= 5e-6
    assert staged["words_within_1e5"] >= 0.9999
    assert staged["bytes_predicted"] < single["bytes_predicted"]
    assert min(staged["bytes_counted"], staged["cpu_s"], staged["wall_s"]) > 0


def test_ranks_share_the_tokens_of_a_micro_batch_if_asked() -> None:
    four = ParallelConfig(plan="dp2pp2")
    assert RanksBenchConfig(micro_batch_tokens=544).rule(four).tokens == 544
    shared = RanksBenchConfig(micro_batch_tokens=544, shares_micro_batches=True)
    assert (shared.rule(four).tokens, shared.rule(ParallelConfig()).tokens) == (136, 544)
    assert RanksBenchConfig(micro_batch_tokens=1, shares_micro_batches=True).rule(four).tokens == 1


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"plans": ("dp3x",)}, "plan"),
        ({"model": "1t"}, "1t"),
        ({"completions": 1}, "completions"),
        ({"zero": 1}, "zero"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        RanksBenchConfig(**wrong)  # type: ignore[arg-type]
