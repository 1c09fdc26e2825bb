"""Rows that fit the memory, and what running out of it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from p2prl.errors import MachineError
from p2prl.models.engines.transformers.row_limit import RowLimit, cache_budget
from p2prl.models.engines.transformers.sampler import build_sampler
from p2prl.models.run_files.export import export_run_files
from p2prl.models.run_model import RunModel, read_run_model
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import layout_of


def _limit(budget: int, most: int = 100) -> RowLimit:
    return RowLimit(budget_bytes=budget, token_bytes=10, vocabulary=5, most_rows=most)


def test_rows_fit_with_their_logits() -> None:
    row = 7 * 10 + 5 * 32
    assert _limit(6 * row).rows(7) == 6
    assert _limit(6 * row - 1).rows(7) == 5
    assert _limit(6 * row).rows(8) == 5
    assert _limit(0).rows(7) == 1, "one goes on whatever the budget"
    assert _limit(10**9).rows(7) == 100


def test_graphs_take_part_of_the_budget_until_they_are_given_up() -> None:
    row = 7 * 10 + 5 * 32
    limit = RowLimit(budget_bytes=6 * row, token_bytes=10, vocabulary=5, most_rows=5, graph_bytes=2 * row)
    assert limit.rows(7) == 4
    limit.ran_out(4)
    limit.ran_out(2)
    assert limit.rows(7) == 1
    limit.without_graphs()
    assert limit.rows(7) == 5
    limit.ran_out(5)
    limit.without_graphs()  # there are none any more
    assert limit.rows(7) == 2
    alone = RowLimit(budget_bytes=row, token_bytes=10, vocabulary=5, graph_bytes=2 * row)
    assert alone.rows(7) == 1, "one goes on whatever the budget"


def test_running_out_halves_and_steps_restore() -> None:
    limit = _limit(10**9)
    limit.ran_out(60)
    assert limit.rows(7) == 30
    for _ in range(4095):
        limit.stepped()
    assert limit.rows(7) == 30
    limit.stepped()
    assert limit.rows(7) == 60
    for _ in range(4096):
        limit.stepped()
    assert limit.rows(7) == 100
    limit.ran_out(1)
    assert limit.rows(7) == 1


def test_granted_memory_includes_the_weights() -> None:
    cpu = torch.device("cpu")
    free = cache_budget(cpu, weight_bytes=10**6, memory_bytes=None)
    assert free > 0
    assert cache_budget(cpu, weight_bytes=1000, memory_bytes=5000) == 4000
    assert cache_budget(cpu, weight_bytes=1000, memory_bytes=900) == 0


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_a_grant_below_the_weights_and_one_completion_is_refused(
    monkeypatch: pytest.MonkeyPatch, dtype: str, itemsize: int
) -> None:
    made = tiny_model()
    config = made.model.config
    layout = layout_of(made.model, "float32")
    run = read_run_model(
        export_run_files(made), layout_digest=layout.digest, weight_bytes=layout.size_bytes, dtype="float32"
    )
    run = replace(run, longest_completion=24)
    weights = layout.parameters * itemsize
    need = weights + 24 * 2 * config.n_layer * config.n_embd * itemsize + 32 * config.vocab_size
    cpu = torch.device("cpu")
    sampler = build_sampler(run, device=cpu, dtype=dtype, memory_bytes=need)
    assert sum(parameter.nbytes for parameter in sampler._policy.model.parameters()) == weights

    def build(*_: object, **__: object) -> object:
        raise AssertionError("the model is built")

    monkeypatch.setattr(RunModel, "build", build)
    for granted in (need - 1, weights - 1, 1):
        with pytest.raises(MachineError, match=f"needs 0.{-(-need // 1000000):03} GB") as caught:
            build_sampler(run, device=cpu, dtype=dtype, memory_bytes=granted)
        assert f"--vram-gb 0.{-(-need // 1000000):03} or more" in caught.value.remedy
