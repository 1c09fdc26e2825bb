"""Loss pipeline: guards, brakes, the ESS warning, the reference, the loss choice and the staleness buckets."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig
from p2prl.algorithms.loss_registry import build_loss
from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.learner.training.local_update_engine import make_trainer
from p2prl.learner.training.loss_guards import EssWatch, GuardConfig
from p2prl.learner.training.loss_pipeline import BUCKETS, STALENESS_EDGES, LossPipeline, LossPipelineConfig, Rollouts
from p2prl.learner.training.optimizer_step import Trainer
from p2prl.learner.training.probation import ProbationConfig
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.small_models.tiny_models import tiny_model
from tests.unit.learner.test_trainer import CONFIG, CPU, batches, state

LENGTHS = ((3, 1, 5, 2), (4, 4, 4, 4), (1, 2, 3, 5))


def rollouts(seed: int = 0, *, drift: float = 0.4) -> tuple[Tensor, Rollouts]:
    """Policy log-probs (3, 4, 5) and a ragged batch sampled from another policy."""
    g = torch.Generator().manual_seed(seed)
    behavior = -torch.rand(3, 4, 5, generator=g, dtype=torch.float64) - 0.1
    policy = (behavior + drift * torch.randn(3, 4, 5, generator=g, dtype=torch.float64)).clamp(max=-1e-3)
    mask = torch.arange(5) < torch.tensor(LENGTHS).unsqueeze(-1)
    return policy.requires_grad_(), Rollouts(
        behavior_logprobs_BGT=behavior,
        mask_BGT=mask,
        rewards_BG=torch.randint(0, 2, (3, 4), generator=g).double(),
        staleness_BG=torch.tensor([[0], [7], [300]]).expand(3, 4),
        trust_B=torch.ones(3),
    )


def pipeline(name: str = "gepo_t", **around: Any) -> LossPipeline:
    return LossPipeline(LossPipelineConfig(objective=build_loss(name), **around))


def gradient(subject: LossPipeline, policy: Tensor, batch: Rollouts) -> Tensor:
    return torch.autograd.grad(subject.estimate(policy, batch).loss, policy)[0]


def log_ratios(policy: Tensor, batch: Rollouts) -> list[list[np.ndarray[Any, np.dtype[np.float64]]]]:
    """ℓ of every completion as numpy, without padding."""
    ell = (policy.detach() - batch.behavior_logprobs_BGT).numpy()
    return [[ell[b, g, :length] for g, length in enumerate(row)] for b, row in enumerate(LENGTHS)]


def test_plain_pipeline_is_the_loss() -> None:
    policy, batch = rollouts()
    objective = build_loss("gepo_t")
    got = LossPipeline.plain(objective).estimate(policy, batch)
    assert got.rate_factor == 1.0
    assert got.metrics["loss_name"] == "gepo_t"
    assert (got.metrics["probation_groups"], got.metrics["deflated_groups"], got.notices) == (0, 0, ())


def test_kl_brake_and_vcpo_scale_the_rate() -> None:
    policy, batch = rollouts(drift=1.5)
    ratios = [row for group in log_ratios(policy, batch) for row in group]
    kl = -sum(float(row.sum()) for row in ratios) / sum(map(sum, LENGTHS))
    weights = np.array([math.exp(float(row.sum())) for row in ratios])
    ess = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    assert kl > 0.05
    braked = pipeline(guards=GuardConfig(kl_brake=0.05)).estimate(policy, batch)
    assert braked.rate_factor == pytest.approx(math.sqrt(0.05 / kl))
    both = pipeline(guards=GuardConfig(kl_brake=0.05, vcpo=True)).estimate(policy, batch)
    assert both.rate_factor == pytest.approx(math.sqrt(0.05 / kl) * math.sqrt(ess))
    assert both.metrics["rate_factor"] == both.rate_factor


def test_trainer_uses_the_scaled_rate() -> None:
    work = list(batches(3))
    made = tiny_model(seed=2)
    plain = make_trainer(made.model, pipeline(), CONFIG, temperature=1.0)
    for batch in work:
        plain.update(batch)  # makes the batch off-policy
    ahead = plain.model
    guarded = make_trainer(ahead, pipeline(guards=GuardConfig(vcpo=True)), CONFIG, temperature=1.0)
    metrics = guarded.update(work[0])
    assert 0 < metrics["rate_factor"] < 1
    assert metrics["learning_rate"] == pytest.approx(CONFIG.learning_rate / 3 * metrics["rate_factor"])


def test_masks_remove_only_their_tokens_from_the_gradient() -> None:
    policy, batch = rollouts(drift=1.0)
    unmasked = gradient(pipeline(), policy, batch)
    tail = gradient(pipeline(guards=GuardConfig(negative_tail=0.3)), policy, batch)
    squares = np.sort(np.concatenate([row**2 for group in log_ratios(policy, batch) for row in group]))
    kept_squares = [x for i, x in enumerate(squares) if squares[: i + 1].mean() <= 0.2]
    moment = gradient(pipeline(guards=GuardConfig(second_moment=0.2)), policy, batch)
    rewards = batch.rewards_BG
    advantages = rewards - rewards.mean(dim=-1, keepdim=True)
    dropped = {"tail": 0, "moment": 0}
    for b, row in enumerate(LENGTHS):
        for g, length in enumerate(row):
            ell = log_ratios(policy, batch)[b][g]
            gone = bool(advantages[b, g] < 0 and -ell.mean() > 0.3)
            dropped["tail"] += gone
            expected = torch.zeros(5) if gone else unmasked[b, g]
            torch.testing.assert_close(tail[b, g], expected, check_dtype=False)
            for t in range(length):
                over = ell[t] ** 2 > kept_squares[-1] + 1e-12
                dropped["moment"] += over
                assert moment[b, g, t] == pytest.approx(0.0 if over else float(unmasked[b, g, t]))
    assert min(dropped.values()) > 0


def test_each_bucket_describes_its_own_rollouts() -> None:
    policy, batch = rollouts()
    metrics = pipeline().estimate(policy, batch).metrics
    assert [re.split(r"[-+]", name)[0] for name in BUCKETS] == [str(edge) for edge in STALENESS_EDGES]
    lasts = [int(re.split("-", name)[-1]) for name in BUCKETS[:-1]]
    assert [last + 1 for last in lasts] == list(STALENESS_EDGES[1:]), "no gap between the names of two buckets"
    seen = {key.split("/")[1] for key in metrics if key.startswith("stale/")}
    assert seen == {"all", "0", "5-16", "257+"}
    for bucket, group in (("0", 0), ("5-16", 1), ("257+", 2)):
        rows = log_ratios(policy, batch)[group]
        tokens = np.concatenate(rows)
        weights = np.exp([row.sum() for row in rows])
        assert metrics[f"stale/{bucket}/completions"] == 4
        assert metrics[f"stale/{bucket}/ess"] == pytest.approx(weights.sum() ** 2 / (weights**2).sum() / 4)
        assert metrics[f"stale/{bucket}/kl_k1"] == pytest.approx(-tokens.mean())
        assert metrics[f"stale/{bucket}/kl_k3"] == pytest.approx((np.exp(tokens) - 1 - tokens).mean())
        assert metrics[f"stale/{bucket}/chi2"] == pytest.approx(np.exp(2 * tokens).mean() - 1)
        assert metrics[f"stale/{bucket}/m2"] == pytest.approx((tokens**2).mean())
        assert 0 < metrics[f"stale/{bucket}/weight_max"] <= 2
    assert metrics["stale/all/completions"] == 12


@pytest.mark.parametrize(
    ("staleness", "bucket"),
    [
        *((0, "0"), (1, "1-4"), (4, "1-4"), (5, "5-16"), (16, "5-16"), (17, "17-64"), (64, "17-64")),
        *((65, "65-256"), (256, "65-256"), (257, "257+"), (9999, "257+")),
    ],
)
def test_staleness_bucket_names(staleness: int, bucket: str) -> None:
    policy, batch = rollouts()
    aged = replace(batch, staleness_BG=torch.full((3, 4), staleness))
    metrics = pipeline().estimate(policy, aged).metrics
    assert {key.split("/")[1] for key in metrics if key.startswith("stale/")} == {"all", bucket}


@pytest.mark.parametrize("completions", [2, 8, 16, 20, 30, 128])
def test_one_completion_that_outweighs_all_is_a_collapse(completions: int) -> None:
    threshold = GuardConfig().ess_threshold(completions)
    assert EssWatch().observe(1 / completions, below=threshold)[1]
    assert not EssWatch().observe(0.8, below=threshold)[1]
    assert GuardConfig(ess_warning=0.0).ess_threshold(completions) == 0.0
    assert GuardConfig().ess_threshold(1) < 1.0, "one completion alone is all there is"


def test_collapse_is_reported_once_until_it_recovers() -> None:
    watch, warnings = EssWatch(), []
    for number, ess in enumerate([0.9] * 5 + [0.01] * 60 + [0.08] * 60 + [0.01] * 60 + [0.9] * 30 + [0.01] * 60):
        watch, now = watch.observe(ess, below=0.05)
        if now:
            warnings.append(number)
    assert len(warnings) == 2
    assert 5 < warnings[0] < 65, "after a while below, not at the first bad batch"
    assert warnings[1] > 215, "not again before it had recovered to twice the threshold"
    assert not any(EssWatch().observe(1e-9, below=0.0)[1] for _ in range(3))


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("grpo", 'loss.name = "topr"'), ("topr", "publish more"), ("gepo_t", "publish more")],
)
def test_warning_has_a_remedy(name: str, remedy: str) -> None:
    policy, batch = rollouts(drift=4.0)
    subject = pipeline(name, guards=GuardConfig(ess_warning=0.5))
    (notice,) = subject.estimate(policy, batch).notices
    assert "effective sample size" in notice
    assert remedy in notice
    assert subject.estimate(policy, batch).notices == ()


@pytest.mark.parametrize("bad", [math.nan, -math.inf, math.inf, 0.5])
@pytest.mark.parametrize("field", ["behavior_logprobs_BGT", "policy_logprobs_BGT"])
def test_impossible_log_probs_are_named(field: str, bad: float) -> None:
    policy, batch = rollouts()
    values = (policy if field == "policy_logprobs_BGT" else batch.behavior_logprobs_BGT).detach().clone()
    values[1, 2, 0] = bad
    if field == "policy_logprobs_BGT":
        policy = values
    else:
        batch = replace(batch, behavior_logprobs_BGT=values)
    with pytest.raises(LocalProtocolError, match=field):
        pipeline().estimate(policy, batch)


def test_empty_completion_and_equal_rewards() -> None:
    policy, batch = rollouts()
    mask = batch.mask_BGT.clone()
    mask[0, 0] = False
    with pytest.raises(LocalProtocolError, match="mask_BGT is empty"):
        pipeline().estimate(policy, replace(batch, mask_BGT=mask))
    same = batch.rewards_BG.clone()
    same[1] = 1.0
    same[[0, 2], 0] = 1.0 - same[[0, 2], 1]
    equal = replace(batch, rewards_BG=same)
    assert pipeline().estimate(policy, equal).metrics["loss/zero_advantage_groups"] == 1
    assert gradient(pipeline(), policy, equal)[1].count_nonzero() == 0


AROUND: dict[str, dict[str, Any]] = {
    "brakes": {"guards": GuardConfig(kl_brake=1e-4, vcpo=True)},
    "masks": {"guards": GuardConfig(second_moment=1e-4, negative_tail=0.0)},
    "reference": {"reference": ReferencePenaltyConfig(beta=0.1)},
    "probation": {"probation": ProbationConfig(probation_groups=4), "probation_loss": build_loss("asympo")},
}


@pytest.mark.parametrize("around", AROUND)
def test_checkpoint_resumes_exactly_with_anything_around_the_loss(tmp_path: Path, around: str) -> None:
    config = LossPipelineConfig(objective=build_loss("gepo_t"), **AROUND[around])
    reference = ReferenceConfig(ema_rate=0.2) if around == "reference" else None

    def fresh(model: Any) -> Trainer:
        return make_trainer(model, LossPipeline(config), CONFIG, temperature=1.0, reference=reference)

    made = tiny_model(seed=2)
    straight = fresh(made.model)
    work = [
        [replace(group, trust=min(1.0, (number + i) / 6)) for i, group in enumerate(batch)]
        for number, batch in enumerate(batches(6))
    ]
    seen = [straight.update(batch) for batch in work[:3]]
    straight.save(tmp_path / "step-00000003", made.tokenizer)
    resumed = fresh(load_pretrained(str(tmp_path / "step-00000003"), device=CPU, dtype="float32").model)
    resumed.restore(tmp_path / "step-00000003")
    for batch in work[3:]:
        metrics = straight.update(batch)
        assert metrics == resumed.update(batch)
        assert straight.notices == resumed.notices
        assert state(straight) == state(resumed)
        seen.append(metrics)
    if around == "brakes":
        assert min(metrics["rate_factor"] for metrics in seen) < 1
    if around == "probation":
        assert max(metrics["probation_groups"] for metrics in seen) > 0
    if around == "reference":
        assert seen[-1]["reference_penalty"] > 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kl_brake", 0.0),
        ("kl_brake", math.nan),
        ("second_moment", -1.0),
        ("negative_tail", -0.1),
        ("negative_tail", math.inf),
        ("ess_warning", 1.5),
    ],
)
def test_impossible_guards_are_named(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"loss.guards.{field}") as caught:
        GuardConfig(**{field: value})  # type: ignore[arg-type]
    assert caught.value.remedy
