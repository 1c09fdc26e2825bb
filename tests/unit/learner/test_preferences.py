"""Preferences beside groups: each pair once a pass, the gradient of DPO added to theirs, and resumed to the bit."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from p2prl.algorithms.loss_registry import build_loss
from p2prl.errors import IntegrityError
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig
from p2prl.learner.training.optimizer_step import Trainer
from p2prl.learner.training.preferences import (
    PreferenceConfig,
    PreferencePairs,
    Preferences,
    logprobs_record,
    pair_record,
)
from p2prl.learner.training.value_head import ValueHeadConfig
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.tasks.data.packed_file import PackedWriter
from tests.unit.learner.test_trainer import CONFIG, CPU, batches, state
from tests.unit.models.small_decoders import difference, gradients

PAIRS = [
    ((14, 1, 2), (3, 4, 5), (6, 7)),
    ((14, 9), (1,), (2, 2, 2, 2)),
    ((14, 5, 5, 5), (8, 0, 1), (8, 0, 2)),
]


def scored(policy: Any, prompt: tuple[int, ...], answer: tuple[int, ...]) -> Tensor:
    """Log-probs of one answer, from whole rows."""
    logits = policy(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(answer)[:, None])[:, 0]


@pytest.fixture
def pairs(tmp_path: Path) -> PreferencePairs:
    first = tiny_model(seed=2).model
    with PackedWriter(tmp_path / "pairs") as writer:
        for row in PAIRS:
            for ids in row:
                writer.append(pair_record(ids))
        writer.finish()
    with PackedWriter(tmp_path / "reference") as writer:
        for prompt, *answers in PAIRS:
            for answer in answers:
                with torch.no_grad():
                    writer.append(logprobs_record(scored(first, prompt, answer).numpy()))
        writer.finish()
    return PreferencePairs(tmp_path / "pairs", tmp_path / "reference")


def trainer(model: Any, preferences: Preferences | None, loss: LossPipeline | None = None) -> Trainer:
    loss = loss or LossPipeline.plain(build_loss("topr"))
    return make_trainer(model, loss, CONFIG, temperature=1.0, preferences=preferences)


def test_every_pair_comes_once_a_pass_in_another_order(pairs: PreferencePairs) -> None:
    drawn = [tuple(group.prompt_ids.tolist()) for step in range(30) for group in pairs.of_update(step, 2)]
    passes = [drawn[at : at + 3] for at in range(0, 60, 3)]
    assert all(Counter(each) == Counter(row[0] for row in PAIRS) for each in passes)
    assert len({tuple(each) for each in passes}) > 3
    assert [len(pairs.of_update(step, 7)) for step in range(3)] == [7, 7, 7], "more than there are"
    again = [tuple(group.prompt_ids.tolist()) for group in pairs.of_update(11, 2)]
    assert again == drawn[22:24]


def test_their_gradient_is_that_of_dpo_and_is_added(pairs: PreferencePairs) -> None:
    (batch,) = batches(1)
    model, first = tiny_model(seed=5).model, tiny_model(seed=2).model
    alone = trainer(model, None)
    alone.gradient(batch)
    groups = gradients(model)
    model.zero_grad()
    beta, weight = 0.3, 0.5
    losses = []
    for prompt, chosen, rejected in PAIRS:
        gain = [scored(model, prompt, answer).sum() for answer in (chosen, rejected)]
        base = [scored(first, prompt, answer).sum().detach() for answer in (chosen, rejected)]
        losses.append(-torch.nn.functional.logsigmoid(beta * ((gain[0] - base[0]) - (gain[1] - base[1]))))
    expected = torch.stack(losses).mean()
    (weight * expected).backward()  # type: ignore[no-untyped-call]
    preferred = gradients(model)

    config = PreferenceConfig(pairs_per_update=3, weight=weight, beta=beta)
    both = trainer(model, Preferences(pairs, config))
    _, _, estimate = both.gradient(batch)
    wanted = [a + b for a, b in zip(groups, preferred, strict=True)]
    assert difference(gradients(model), wanted) < 1e-5
    assert estimate.metrics["preferences/loss"] == pytest.approx(float(expected.detach()), rel=1e-5)
    plain = alone.gradient(batch)[2]
    total = float(plain.loss.detach()) + weight * float(expected.detach())
    assert float(estimate.loss.detach()) == pytest.approx(total, rel=1e-5)
    assert {key: estimate.metrics[key] for key in plain.metrics} == plain.metrics


def test_pairs_are_learned_and_a_value_head_does_not_mind(pairs: PreferencePairs) -> None:
    pipeline = LossPipeline(LossPipelineConfig(objective=build_loss("ppo"), value=ValueHeadConfig()))
    subject = trainer(tiny_model(seed=2).model, Preferences(pairs, PreferenceConfig(pairs_per_update=3)), pipeline)
    seen = [subject.update(batch) for batch in batches(8)]
    assert seen[0]["preferences/loss"] == pytest.approx(np.log(2), rel=1e-4), "the policy is the reference"
    assert seen[0]["preferences/margin"] == pytest.approx(0.0, abs=1e-5)
    assert seen[-1]["preferences/loss"] < seen[0]["preferences/loss"]
    assert seen[-1]["preferences/margin"] > 0.0
    assert seen[-1]["preferences/accuracy"] == 1.0


def test_a_restored_trainer_takes_the_same_pairs(pairs: PreferencePairs, tmp_path: Path) -> None:
    made = tiny_model(seed=2)
    config = PreferenceConfig(pairs_per_update=2)
    straight = trainer(made.model, Preferences(pairs, config))
    work = list(batches(5))
    for batch in work[:2]:
        straight.update(batch)
    straight.save(tmp_path / "step-00000002", made.tokenizer)
    resumed = trainer(
        load_pretrained(str(tmp_path / "step-00000002"), device=CPU, dtype="float32").model, Preferences(pairs, config)
    )
    resumed.restore(tmp_path / "step-00000002")
    for batch in work[2:]:
        assert straight.update(batch) == resumed.update(batch)
        assert state(straight) == state(resumed)


def test_files_of_other_pairs_are_refused(pairs: PreferencePairs, tmp_path: Path) -> None:
    with PackedWriter(tmp_path / "short") as writer:
        writer.append(bytes(4))
        writer.finish()
    with pytest.raises(IntegrityError, match="another number"):
        PreferencePairs(tmp_path / "pairs", tmp_path / "short")
    with PackedWriter(tmp_path / "other") as writer:
        for _ in range(6):
            writer.append(bytes(4))
        writer.finish()
    with pytest.raises(IntegrityError, match="other tokens"):
        PreferencePairs(tmp_path / "pairs", tmp_path / "other").of_update(0, 3)
