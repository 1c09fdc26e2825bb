"""Four ranks in two pipelines train as one process, and go on from their checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.models.small_models.tiny_models import tiny_model
from tests.loopback.rank_rig import (
    assert_close,
    assert_gradients_agree,
    batch_of,
    names_in,
    pipeline,
    saved,
    sharded,
    single,
    started,
    weights,
)
from tests.unit.models.small_decoders import qwen2

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]


def test_two_pipelines_train_as_one_process(tmp_path: Path) -> None:
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    plan = ParallelConfig(plan="dp2pp2")
    with started(4) as ranks:
        one, two = single(directory, pipeline()), sharded(ranks, directory, pipeline(), parallel=plan)
        assert_gradients_agree(one, two, model, losses=["gepo_t", "topr"])
        for seed in range(4):
            one.update(batch_of(seed, model))
            two.update(batch_of(seed, model))
        assert_close(weights(two, model), weights(one, model), updates=4)
        for number, trainer in enumerate((one, two)):
            trainer.save(tmp_path / f"step-{number}", tiny_model().tokenizer)
        assert names_in(tmp_path / "step-0") == names_in(tmp_path / "step-1")
        resumed = sharded(ranks, tmp_path / "step-1", pipeline(), parallel=plan)
        resumed.restore(tmp_path / "step-1")
        for trainer in (one, resumed):
            trainer.update(batch_of(9, model))
        assert_close(weights(resumed, model), weights(one, model), updates=5)
