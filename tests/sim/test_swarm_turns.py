"""Swarms on environments: volunteers play whole episodes, the learner checks and trains on them, rewards rise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from p2prl.algorithms.loss_registry import build_loss
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_pipeline import LossPipeline
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.training_group import training_group
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.engines.transformers.policy_model import PolicyModel
from p2prl.models.engines.transformers.sampler import TransformersSampler
from p2prl.models.engines.transformers.scorer import TransformersScorer
from p2prl.models.evaluation.mean_reward import evaluate
from p2prl.models.replay.group_replay import replay_groups
from p2prl.models.sampling import sample_all
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten
from p2prl.sim import simulated_run
from p2prl.sim.simulated_run import SimulatedRun
from p2prl.sim.swarm import Swarm
from p2prl.sim.swarm_config import SwarmConfig
from tests.unit.talking_task import install_talking_task

GROUPS, UPDATES = 8, 8


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_every_episode_of_a_swarm_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = install_talking_task(tmp_path, monkeypatch)
    monkeypatch.setattr(simulated_run, "_EVALUATION_PROMPTS", 32)
    config = SwarmConfig(volunteers=2, updates=1, seed=2, task=task)
    result = Swarm(config, tiny_model(task, seed=1), tmp_path).run(on_progress=lambda _: None)
    assert result.updates == 1
    assert result.groups_rejected == 0
    assert result.groups_verified >= 16


def practice(task: str, loaded: LoadedModel) -> tuple[float, float]:
    """Updates on verified groups; the mean reward of fresh episodes before and after."""
    run = SimulatedRun.of(loaded, staleness_bound=4, publish_every=1, seed=3, task=task)
    policy = PolicyModel(tiny_model(task).model, run.layout)
    sampler, scorer = TransformersSampler(policy), TransformersScorer(policy)
    trainer = make_trainer(
        loaded.model,
        LossPipeline.plain(build_loss("gepo_t")),
        OptimizerConfig(learning_rate=3e-3, warmup_updates=1),
        temperature=1.0,
    )
    rewards = []
    for step in range(UPDATES + 1):
        policy.load(bytes(flatten(loaded.model, run.layout)))
        if step in (0, UPDATES):
            rewards.append(evaluate(sampler, run.work, prompts=256, seed=9).reward)
        digest, nobody = bytes([step + 1]) * 32, bytes(32)
        slots = [run.work.assign(beacon=nobody, peer=nobody, slot=slot) for slot in range(GROUPS)]
        made = iter(sample_all(sampler, [request for slot in slots for request in slot.requests]))
        checked = []
        for slot in slots:
            generations = list(itertools.islice(made, len(slot.requests)))
            group = run.work.pack(
                slot, generations, version=step, policy=digest, engine=sampler.engine_class, seconds=1.0
            )
            checked.append((group, run.work.inspect(group, peer=nobody, beacon=nobody)))
        replays = replay_groups(scorer, checked, run_dtype="float32")
        assert {inspection.reason for _, inspection in checked} | {replay.reason for replay in replays} == {""}
        trainer.update(
            [
                training_group(
                    prompt_ids=inspection.assignment.prompt_ids,
                    completions=inspection.token_ids,
                    behavior_logprobs=replay.behavior_logprobs,
                    rewards=run.work.rewards(inspection.assignment, inspection.token_ids),
                    staleness=0,
                )
                for (_, inspection), replay in zip(checked, replays, strict=True)
            ]
        )
    return rewards[0], rewards[1]


def test_the_reward_rises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = install_talking_task(tmp_path, monkeypatch)
    before, after = practice(task, tiny_model(task, seed=1))
    assert 0.05 < before < 0.3
    assert after > before + 0.2
