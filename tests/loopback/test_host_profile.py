"""The profile of a host: real ranks, a model of two layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.models.small_models.tiny_models import tiny_model
from tests.loopback.timed_ranks import timed_in_fork

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]


def test_every_plan_that_the_model_can_be_trained_by_is_timed(tmp_path: Path) -> None:
    """The tiny model has one key-value head, which two tensor ranks cannot share."""
    made = tiny_model(seed=3)
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    found = timed_in_fork("profile", str(tmp_path))
    assert {(each["plan"], each["zero"]) for each in found} >= {("1", 2), ("dp2", 2), ("dp2", 3), ("pp2", 2)}
    for each in found:
        assert min(each["seconds"]) > 0.0
        assert set(each["checkpointing"]) == {False, True}
        assert each["fit"] > 0.0
