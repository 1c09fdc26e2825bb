"""Probation: wrong log-probs of a peer without history, against every defense."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from p2prl.algorithms.loss_registry import build_loss
from p2prl.algorithms.objective import Objective
from p2prl.errors import ConfigError
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl.learner.training.loss_pipeline import LossPipeline, LossPipelineConfig, Rollouts
from p2prl.learner.training.probation import ProbationConfig

NEW, KNOWN = 0, 1
"""Rows of the two groups: of a peer on probation, and of one that is trusted."""

LIES = pytest.mark.parametrize("nats", [1.0, 2.0, 4.0])
PER_GROUP = ("behavior_logprobs_BGT", "mask_BGT", "rewards_BG", "staleness_BG", "trust_B")
DRIFT = torch.randn(2, 8, 16, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
WIDE_GSPO: dict[str, object] = {"clip_low": 1.0, "clip_high": 1e9}
"""GSPO without its clip shows the weight itself."""


def honest() -> tuple[Tensor, Rollouts]:
    """Two groups of eight on policy, the first of a peer without history."""
    g = torch.Generator().manual_seed(8)
    means = -0.35 + 0.05 * torch.randn(2, 8, 1, generator=g, dtype=torch.float64)
    logprobs = means.expand(2, 8, 16).clone()
    return logprobs.clone().requires_grad_(), Rollouts(
        behavior_logprobs_BGT=logprobs,
        mask_BGT=torch.ones(2, 8, 16, dtype=torch.bool),
        rewards_BG=torch.tensor([[1.0, 0, 1, 0, 1, 0, 1, 0]] * 2, dtype=torch.float64),
        staleness_BG=torch.zeros(2, 8, dtype=torch.int64),
        trust_B=torch.tensor([0.0, 1.0]),
    )


def lying(batch: Rollouts, nats: float, members: slice) -> Rollouts:
    claimed = batch.behavior_logprobs_BGT.clone()
    claimed[NEW, members] -= nats
    return replace(batch, behavior_logprobs_BGT=claimed)


def probation(
    name: str, free: str = "", options: dict[str, object] | None = None, guards: GuardConfig | None = None
) -> LossPipeline:
    probation_loss = build_loss(free) if free else None
    return LossPipeline(
        LossPipelineConfig(
            objective=build_loss(name, options=options),
            guards=guards or GuardConfig(),
            probation=ProbationConfig(probation_groups=8, loss=free),
            probation_loss=probation_loss,
        )
    )


def gradient(subject: LossPipeline, policy: Tensor, batch: Rollouts) -> Tensor:
    return torch.autograd.grad(subject.estimate(policy, batch).loss, policy)[0]


@LIES
def test_false_log_probs_gain_exp_k_from_gspo_and_nothing_on_probation(nats: float) -> None:
    policy, batch = honest()
    batch = lying(batch, nats, slice(0, 1))
    trusted = replace(batch, trust_B=torch.ones(2))
    plain = LossPipeline.plain(build_loss("gspo", options=WIDE_GSPO)).estimate(policy, trusted)
    assert plain.metrics["loss/weight_max"] == pytest.approx(math.exp(nats))
    held = probation("gspo", options=WIDE_GSPO).estimate(policy, batch)
    assert held.metrics["loss/weight_max"] <= 1.0 + 1e-9
    assert held.metrics["probation_groups"] == 1


@pytest.mark.parametrize(("means", "claimed", "factor"), [((-0.1, -2.0), -4.1, 3.84), ((-2.0, -2.0), -0.1, 0.26)])
def test_likeliest_completion_moves_all_gepo_weights_of_its_group(
    means: tuple[float, float], claimed: float, factor: float
) -> None:
    """The limit of GEPO's robustness: Ê = ΣQ²/ΣQ is an average by Q."""
    first, others = means
    _, batch = honest()
    likely = torch.full_like(batch.behavior_logprobs_BGT, others)
    likely[:, 0] = first
    lied = likely.clone()
    lied[NEW, 0] = claimed
    expectations = [
        (math.exp(2 * claim) + 7 * math.exp(2 * others)) / (math.exp(claim) + 7 * math.exp(others))
        for claim in (first, claimed)
    ]
    assert expectations[0] / expectations[1] == pytest.approx(factor, abs=0.005)
    plain = LossPipeline.plain(build_loss("gepo", options={"log_weight_bound": 20.0}))
    trusted = replace(batch, behavior_logprobs_BGT=likely, trust_B=torch.ones(2))
    before, after = (
        gradient(plain, likely.clone().requires_grad_(), replace(trusted, behavior_logprobs_BGT=claimed))[NEW]
        for claimed in (likely, lied)
    )
    torch.testing.assert_close(after, before * expectations[0] / expectations[1])


@LIES
def test_group_with_false_log_probs_on_probation_is_dropped_and_counted(nats: float) -> None:
    policy, batch = honest()
    subject = probation("gepo")
    claimed = lying(batch, nats, slice(None))
    assert subject.estimate(policy, claimed).metrics["deflated_groups"] == 1
    after, before = gradient(subject, policy, claimed), gradient(subject, policy, batch)
    assert after[NEW].count_nonzero() == 0
    assert before[NEW].count_nonzero() > 0
    torch.testing.assert_close(after[KNOWN], before[KNOWN])


@LIES
@pytest.mark.parametrize("free", ["", "asympo"])
def test_false_log_probs_affect_neither_rate_nor_masks(nats: float, free: str) -> None:
    guards = GuardConfig(kl_brake=0.05, vcpo=True, second_moment=0.04, negative_tail=0.5, ess_warning=0.5)
    policy, batch = honest()
    drifted = replace(batch, behavior_logprobs_BGT=(batch.behavior_logprobs_BGT + 0.3 * DRIFT).clamp(max=0.0))
    claimed = lying(drifted, nats, slice(None))
    alone = replace(
        drifted, **{name: getattr(drifted, name)[KNOWN:] for name in PER_GROUP if getattr(drifted, name) is not None}
    )
    lied, without = (probation("gepo_t", free, guards=guards) for _ in range(2))
    for _ in range(30):  # longer than the warning's memory
        got, wanted = lied.estimate(policy, claimed), without.estimate(policy[KNOWN:], alone)
        assert got.rate_factor == pytest.approx(wanted.rate_factor)
        assert got.rate_factor < 1.0
        assert got.notices == wanted.notices
    after, before = (torch.autograd.grad(each.loss, policy)[0] for each in (got, wanted))
    torch.testing.assert_close(after[KNOWN], before[KNOWN] / 2, msg="one group of two")


@LIES
@pytest.mark.parametrize("free", ["asympo", "asymre"])
@pytest.mark.parametrize("members", [slice(0, 1), slice(None)])
def test_loss_without_log_probs_ignores_false_ones(nats: float, free: str, members: slice) -> None:
    policy, batch = honest()
    subject = probation("gepo_t", free)
    masked = probation("gepo_t", free, guards=GuardConfig(second_moment=0.04, negative_tail=0.5))
    lied = gradient(subject, policy, lying(batch, nats, members))
    torch.testing.assert_close(lied, gradient(subject, policy, batch))
    torch.testing.assert_close(lied, gradient(masked, policy, lying(batch, nats, members)))
    assert lied[NEW].count_nonzero() > 0
    trusted = replace(batch, trust_B=torch.ones(2))
    plain = gradient(LossPipeline.plain(build_loss("gepo_t")), policy, trusted)
    torch.testing.assert_close(lied[KNOWN], plain[KNOWN], msg="a trusted group keeps its share of the batch")


def test_trusted_and_probation_groups_add_up_to_one_batch() -> None:
    policy, batch = honest()
    split = probation("asympo", "asympo")
    plain = LossPipeline.plain(build_loss("asympo"))
    trusted = replace(batch, trust_B=torch.ones(2))
    torch.testing.assert_close(gradient(split, policy, batch), gradient(plain, policy, trusted))


def test_weights_of_both_losses_are_described() -> None:
    policy, batch = honest()
    aged = replace(batch, staleness_BG=torch.tensor([[3], [90]]).expand(2, 8))
    metrics = probation("gepo_t", "asympo").estimate(policy, aged).metrics
    objective: Objective = build_loss("gepo_t")
    trusted = LossPipeline.plain(objective).estimate(policy, replace(aged, trust_B=torch.ones(2)))
    assert metrics["stale/65-256/weight_max"] == pytest.approx(trusted.metrics["stale/65-256/weight_max"])
    largest = float((-1 / policy.detach()[NEW].mean(dim=-1)).max())
    assert metrics["stale/1-4/weight_max"] == pytest.approx(largest), "asympo's 1/NLL: no claim, and so no cap"


def test_trust_grows_with_trained_groups() -> None:
    config = ProbationConfig(probation_groups=4, cap=0.5, trusted_cap=2.5)
    assert [config.trust(groups) for groups in (0, 1, 2, 4, 9)] == [0.0, 0.25, 0.5, 1.0, 1.0]
    caps = config.caps(torch.tensor([0.0, 0.25, 0.5, 1.0]), 3)
    assert caps[:, 0].tolist() == [0.5, 1.0, 1.5, math.inf]
    assert caps.shape == (4, 3)
    assert ProbationConfig().trust(0) == 1.0, "without probation everybody is trusted"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("probation_groups", -1),
        ("cap", -0.1),
        ("cap", 3.0),
        ("trusted_cap", math.inf),
        ("max_rise_nats", -1.0),
        ("max_fall_nats", math.nan),
    ],
)
def test_impossible_rules_are_named(field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"loss.trust.{field}") as caught:
        ProbationConfig(**{field: value})  # type: ignore[arg-type]
    assert caught.value.remedy
