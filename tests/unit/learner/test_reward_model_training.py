"""Training on the scores of a real classifier: rewards in the journal, and the same weights after a kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from p2prl.algorithms.loss_registry import build_loss
from p2prl.learner.journal.rollout_reader import KeptRollouts
from p2prl.learner.service import Learner
from p2prl.learner.training.loss_pipeline import LossPipelineConfig
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.rewards.reward_model import RewardModel
from p2prl.models.rewards.reward_model_folder import reward_model_digest
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.protocol.signed_group import read_group
from p2prl.tasks.chain4 import CHAIN4
from tests.unit.learner.scripted_swarm import fresh_runs, make_learner, metrics_lines, run_through
from tests.unit.learner.small_run import SmallRun
from tests.unit.models.rewards.classifiers import classifier

STEPS = LossPipelineConfig(objective=build_loss("gepo_t"), credits_steps=True)
PARTS = {"orm": "success+0.5*orm", "prm": "success+0.5*prm:clip+delta"}


@pytest.fixture(params=["orm", "prm"])
def fresh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[[str], SmallRun]]:
    classifier(tmp_path / "judge", request.param)
    with fresh_runs(tmp_path) as make:

        def judged(name: str) -> SmallRun:
            run = make(name)
            reward = f"{PARTS[request.param]}@{reward_model_digest(tmp_path / 'judge')}"
            run.manifest = msgspec.structs.replace(run.manifest, reward=reward)
            codec = TextCodec(run.loaded.tokenizer, run.loaded.model)
            run.work = GroupWork(run.manifest, run.run, codec)  # a volunteer's, which has no reward model
            return run

        yield judged


def build(run: SmallRun) -> Learner:
    judge = RewardModel(run.directory.parent / "judge", torch.device("cpu"))
    return make_learner(run, around=STEPS if "prm" in run.manifest.reward else None, reward_model=judge)


def test_a_killed_learner_ends_with_the_same_weights(fresh: Callable[[str], SmallRun]) -> None:
    straight, _, _ = run_through(fresh("straight"), None, build=build)
    killed = fresh("killed")
    weights, swarm, _ = run_through(killed, 9, within_update=True, build=build)
    assert weights == straight
    part = "orm" if "orm" in killed.manifest.reward else "prm"
    line = metrics_lines(killed)[-1]
    assert line["reward_model_cut"] == 0
    assert f"reward/chain4/{part}/mean" in line
    assert swarm.small_run is killed


def test_the_journal_keeps_what_the_classifier_says(fresh: Callable[[str], SmallRun], tmp_path: Path) -> None:
    run = fresh("kept")
    run_through(run, None, build=build)
    judge = RewardModel(tmp_path / "judge", torch.device("cpu"))
    codec = TextCodec(run.loaded.tokenizer, run.loaded.model)
    kept = KeptRollouts(run.directory / "journal.db")
    groups = [(each, kept.policy(each.version).beacon) for step in kept.steps() for each in kept.batch(step)]
    kept.close()
    assert groups
    for stored, beacon in groups:
        seen = run.work.inspect(read_group(stored.raw, stored.body).group, peer=stored.peer, beacon=beacon)
        success = run.work.successes(seen.assignment, seen.token_ids)
        rewards = np.frombuffer(stored.rewards, "<f4").tolist()
        for ids, verdict, reward in zip(seen.token_ids, success, rewards, strict=True):
            finished = ids[-1] in codec.stop_ids
            text = codec.decode(ids[:-1] if finished else ids)
            if judge.kind == "orm":
                said = judge.judge(seen.assignment.prompt, text, ending="<e>" if finished else "", step_ends=None)
                assert reward == pytest.approx(verdict + 0.5 * said.outcome, abs=1e-6)
            else:  # Clip and Delta: what a completion loses by its first step, if it has another
                assert CHAIN4.process_scorer is not None
                ends = CHAIN4.process_scorer.judge(seen.assignment.prompt, text, finished).ends
                steps = judge.judge(seen.assignment.prompt, text, ending="", step_ends=ends).steps
                lost = min(steps[0] - 0.5, 0.0) if len(steps) > 1 else 0.0
                assert reward == pytest.approx(verdict + 0.5 * lost, abs=1e-6)
