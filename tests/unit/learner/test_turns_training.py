"""Training on episodes: tokens of the environment are context, and touch neither losses nor counts nor the journal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, build_loss
from p2prl.learner.intake.settlement import receipt_of
from p2prl.learner.journal.groups import GroupState
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig, Rollouts
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.training_group import TrainingGroup, training_group
from p2prl.models.groups.group_work import ReplayTools
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.weights.layout import flatten, layout_of
from p2prl.protocol.signed_group import read_group
from p2prl.validator.verdicts import judge
from tests.unit.learner.scripted_swarm import run_through
from tests.unit.learner.small_run import SmallRun, identity
from tests.unit.talking_task import MAX_NEW_TOKENS, install_talking_task

ME = identity("volunteer")
SHAPE = (3, 4, 9)


def rollouts() -> tuple[torch.Tensor, Rollouts]:
    """Policy log-probs, and a batch of transcripts with an environment's tokens in the middle of each."""
    g = torch.Generator().manual_seed(3)
    behavior = -torch.rand(SHAPE, generator=g, dtype=torch.float64) - 0.1
    policy = (behavior + 0.3 * torch.randn(SHAPE, generator=g, dtype=torch.float64)).clamp(max=-1e-3)
    mask = torch.ones(SHAPE, dtype=torch.bool)
    mask[..., 2:4] = mask[0, :, 6] = mask[1:, :, 8] = False
    reference = (behavior + 0.2 * torch.randn(SHAPE, generator=g, dtype=torch.float64)).clamp(max=-1e-3)
    return policy, Rollouts(
        behavior_logprobs_BGT=behavior,
        mask_BGT=mask,
        rewards_BG=torch.rand(SHAPE[:2], generator=g, dtype=torch.float64),
        staleness_BG=torch.tensor([[0], [7], [300]]).expand(3, 4),
        trust_B=torch.tensor([1.0, 1.0, 0.5]),
        reference_logprobs_BGT=reference,
    )


@pytest.mark.parametrize("name", sorted(BUILTIN_LOSSES))
def test_no_loss_reads_log_probs_of_the_environment(name: str) -> None:
    """The loss, its gradient and every metric are the same whatever the log-probs off the mask are."""
    policy, batch = rollouts()
    mask = batch.mask_BGT
    results = []
    for noise in (0.0, -0.7, -300.0):
        other = [torch.where(mask, t, torch.full_like(t, noise)) for t in (policy, batch.behavior_logprobs_BGT)]
        assert batch.reference_logprobs_BGT is not None
        reference = torch.where(mask, batch.reference_logprobs_BGT, noise)
        config = LossPipelineConfig(
            objective=build_loss(name, max_completion_tokens=9),
            guards=GuardConfig(kl_brake=0.05, vcpo=True, second_moment=0.04, negative_tail=0.2),
            reference=ReferencePenaltyConfig(beta=0.1),
        )
        leaf = other[0].requires_grad_()
        estimate = LossPipeline(config).estimate(
            leaf, replace(batch, behavior_logprobs_BGT=other[1], reference_logprobs_BGT=reference)
        )
        (gradient,) = torch.autograd.grad(estimate.loss, leaf)
        assert not gradient[~mask].any()
        results.append((float(estimate.loss.detach()), gradient, estimate.metrics))
    first = results[0]
    assert first[1][mask].any()
    for loss, gradient, metrics in results[1:]:
        assert loss == first[0]
        assert torch.equal(gradient, first[1])
        assert metrics == first[2]


def groups(model: torch.nn.Module) -> list[TrainingGroup]:
    """Two groups of transcripts with a message at tokens 2 and 3."""
    g = torch.Generator().manual_seed(5)
    made = []
    for reward in (1.0, 0.5):
        completions = tuple(tuple(torch.randint(0, 10, (n,), generator=g).tolist()) for n in (7, 5, 8))
        with torch.no_grad():
            logprobs, _ = completion_logprobs(model, [(14, 1)] * 3, completions, 1.0)
        behavior = tuple(
            tuple(float("nan") if t in (2, 3) else float(row[t]) for t in range(len(ids)))
            for row, ids in zip(logprobs, completions, strict=True)
        )
        made.append(training_group((14, 1), completions, behavior, (0.0, reward, 0.25), 1))
    return made


def test_an_update_counts_and_trains_the_policys_tokens_alone() -> None:
    model = tiny_model(seed=2).model
    trainer = make_trainer(
        model,
        LossPipeline.plain(build_loss("grpo")),
        OptimizerConfig(learning_rate=1e-3, warmup_updates=1),
        temperature=1.0,
        reference=ReferenceConfig(),
    )
    batch = groups(model)
    rollouts, logprobs, estimate = trainer.gradient(batch)
    assert rollouts.mask_BGT.sum(dim=-1).tolist() == [[5, 3, 6], [5, 3, 6]]
    assert not rollouts.behavior_logprobs_BGT[~rollouts.mask_BGT].any()
    assert bool(torch.isfinite(rollouts.behavior_logprobs_BGT).all())
    leaf = logprobs.detach().requires_grad_()
    again = LossPipeline.plain(build_loss("grpo")).estimate(leaf, rollouts)
    (coefficients,) = torch.autograd.grad(again.loss, leaf)
    assert not coefficients[~rollouts.mask_BGT].any()
    got = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    # The same gradient, from the log-probs of the policy's tokens only.
    model.zero_grad()
    rows = [(group.prompt_ids, ids) for group in batch for ids in group.completions]
    own, _ = completion_logprobs(model, [p for p, _ in rows], [c for _, c in rows], 1.0)
    kept = rollouts.mask_BGT.flatten(0, 1)
    (own[kept] * coefficients.flatten(0, 1)[kept]).sum().backward()  # type: ignore[no-untyped-call]
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, got[name], atol=1e-6), name

    metrics = trainer.update(batch)
    assert metrics["completion_tokens_mean"] == pytest.approx(14 / 3)
    assert metrics["kl_behavior_per_token"] == pytest.approx(0.0, abs=1e-5)
    assert estimate.metrics["stale/all/completions"] == 6


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], SmallRun]:
    task = install_talking_task(tmp_path, monkeypatch)

    def make(name: str) -> SmallRun:
        return SmallRun(tmp_path / name, task=task, model=task, max_new_tokens=MAX_NEW_TOKENS)

    return make


def test_receipts_and_verdicts_count_the_policys_tokens(fresh: Callable[[str], SmallRun]) -> None:
    run = fresh("paid")
    policy = run.publish(0, step=0)
    group = run.group(policy, ME, 1)
    inspection = run.work.inspect(group, peer=ME.public_key, beacon=policy.manifest.beacon)
    sampled = sum(map(sum, inspection.sampled))
    assert 0 < sampled < sum(len(completion.tokens) // 4 for completion in group.completions)
    stored = run.sealed(group, ME)
    (outcome,) = run.check(stored)
    assert receipt_of(outcome).tokens == sampled
    ((verdict, _),) = judge(
        ReplayTools(run.scorer, run.work), policy.manifest, [read_group(stored.raw)], validator=bytes(32)
    )
    assert (verdict.passed, verdict.tokens) == (True, sampled)
    run.close()


@pytest.mark.parametrize(("kill", "within"), [(3, False), (6, False), (4, True)])
def test_a_killed_learner_ends_with_the_same_weights(fresh: Callable[[str], SmallRun], kill: int, within: bool) -> None:
    """The mask survives in the journal."""
    weights = []
    for name, at in (("straight", None), ("killed", kill)):
        run = fresh(name)
        run.journal.close()
        made, _, _ = run_through(run, at, within_update=within and at is not None)
        weights.append(made)
        run.blobs.close()
    assert weights[0] == weights[1]
    assert weights[0] != bytes(flatten(tiny_model(run.model, seed=1).model, layout_of(run.loaded.model, "float32")))


def test_the_journal_marks_the_environments_tokens(fresh: Callable[[str], SmallRun]) -> None:
    run = fresh("marked")
    policy = run.publish(0, step=0)
    group = run.group(policy, ME, 1)
    stored = run.sealed(group, ME)
    run.store(stored)
    (outcome,) = run.check(stored)
    assert outcome.replay is not None
    inspection = run.work.inspect(group, peer=ME.public_key, beacon=policy.manifest.beacon)
    behavior = np.concatenate([np.asarray(row, dtype="<f4") for row in outcome.replay.behavior_logprobs]).tobytes()
    with run.journal.transaction():
        run.journal.groups.mark_verified(stored.digest, behavior=behavior, rewards=bytes(8))
    (again,) = run.journal.groups.in_state(GroupState.VERIFIED, 1)
    marks = np.isnan(np.frombuffer(again.behavior, dtype="<f4"))
    assert marks.tolist() == [not mine for row in inspection.sampled for mine in row]
    assert marks.any()
    run.close()
