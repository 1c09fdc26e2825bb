"""Loss pipeline: from log-probs to one scalar to minimize, through guards, probation and reference pull.

It combines the loss with every optional part and collects their metrics. The state is a few plain numbers, kept in the
checkpoint. Apart from it the result depends on the batch alone, so a replay reproduces it.

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from p2prl.algorithms.advantages import whiten
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.diagnostics import StalenessDiagnostics, diagnose
from p2prl.algorithms.guards import spread
from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig, reference_penalty
from p2prl.algorithms.objective import Objective
from p2prl.algorithms.ppo import gae
from p2prl.algorithms.ratios import masked_mean, on_mask, terms_of
from p2prl.algorithms.step_credit import StepRewards, step_advantages
from p2prl.learner.training.loss_guards import EssWatch, GuardConfig
from p2prl.learner.training.probation import ProbationConfig
from p2prl.learner.training.value_head import TokenValues, ValueHeadConfig


@dataclass(frozen=True, kw_only=True)
class LossPipelineConfig:
    """A loss and the optional parts around it."""

    objective: Objective
    """The loss."""
    guards: GuardConfig = field(default_factory=GuardConfig)
    """Masks, brakes and the warning."""
    probation: ProbationConfig = field(default_factory=ProbationConfig)
    """Bounds for peers without history."""
    probation_loss: Objective | None = None
    """The loss of groups on probation; None: the run's own."""
    reference: ReferencePenaltyConfig = field(default_factory=ReferencePenaltyConfig)
    """KL penalty towards a reference policy."""
    credits_steps: bool = False
    """Whether tokens answer for the rewards of their own and later steps, instead of the completion's sum."""
    value: ValueHeadConfig | None = None
    """Settings of the value head; None without one."""


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """A batch of B groups before its advantages are computed."""

    behavior_logprobs_BGT: Tensor
    """Nats: the learner's own, at the version each group was sampled with."""
    mask_BGT: Tensor
    """Bool."""
    rewards_BG: Tensor
    """Reward units."""
    staleness_BG: Tensor
    """Updates."""
    trust_B: Tensor
    """0 to 1: `ProbationConfig.trust` of each group's peer."""
    reference_logprobs_BGT: Tensor | None = None
    """Nats: the reference policy's."""
    steps: StepRewards | None = None
    """Rewards of steps, for losses whose advantages differ from token to token."""
    cut_off_BG: Tensor | None = None
    """Bool: completions that reached the token limit before their end; None: none did."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The loss of one batch and what to log about it."""

    loss: Tensor
    """Scalar to minimize."""
    rate_factor: float
    """Factor on the learning rate, in (0, 1]."""
    metrics: dict[str, Any]
    """For the log (`docs/metrics.md`)."""
    notices: tuple[str, ...]
    """Messages for the user: a warning and its remedy."""


class LossPipeline:
    """The run's loss, with its state at the current update."""

    def __init__(self, config: LossPipelineConfig) -> None:
        self._config = config
        self._watch = EssWatch()

    @classmethod
    def plain(cls, objective: Objective) -> LossPipeline:
        """A pipeline of the loss alone."""
        return cls(LossPipelineConfig(objective=objective))

    @property
    def probation(self) -> ProbationConfig:
        """The run's probation rule."""
        return self._config.probation

    @property
    def value(self) -> ValueHeadConfig | None:
        """Settings of the value head; None without one."""
        return self._config.value

    @property
    def credits_tokens(self) -> bool:
        """Whether a batch needs `Rollouts.steps`."""
        return self._config.credits_steps or self._config.value is not None

    @property
    def masks_truncated(self) -> bool:
        """Whether completions that were cut off carry no gradient."""
        return self._config.guards.mask_truncated

    @property
    def objective(self) -> Objective:
        """The loss."""
        return self._config.objective

    def state(self) -> dict[str, Any]:
        """State for a checkpoint: plain numbers."""
        return {"ess_watch": asdict(self._watch)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Load a checkpoint's state; what this version does not know is ignored."""
        if "ess_watch" in state:
            self._watch = EssWatch(**state["ess_watch"])

    def estimate(
        self, policy_logprobs_BGT: Tensor, rollouts: Rollouts, *, values: TokenValues | None = None
    ) -> Estimate:
        """The loss of a batch; gradients flow to `policy_logprobs_BGT` and `values`. Advances the state.

        Raises LocalProtocolError where the batch holds NaN, infinity or an empty completion.
        """
        notices: list[str] = []
        objective, config = self.objective, self._config
        dropped_BG = self._dropped(rollouts)
        if dropped_BG is not None:  # here, not in the loss alone: a reference and a value head pull on tokens too
            policy_logprobs_BGT = torch.where(
                dropped_BG.unsqueeze(-1), policy_logprobs_BGT.detach(), policy_logprobs_BGT
            )
            values = None if values is None else values.held(dropped_BG)
        plain, returns_BGT = self._batch(objective, rollouts, values)
        reliable_B = self._reliable(policy_logprobs_BGT, plain, rollouts)
        batch, counts = self._guarded(plain, policy_logprobs_BGT, rollouts, reliable_B)
        output = self._output(objective, policy_logprobs_BGT, rollouts, batch)
        loss = output.loss
        metrics: dict[str, Any] = {"loss_name": objective.spec.name, **counts}
        if values is not None and returns_BGT is not None:
            assert config.value is not None
            added, figures = values.loss(returns_BGT, batch.mask_BGT, config.value, objective.aggregation)
            loss = loss + added
            metrics |= figures
        if config.reference.beta > 0:
            penalty = reference_penalty(policy_logprobs_BGT, batch, config.reference, objective.aggregation)
            loss = loss + penalty
            metrics["reference_penalty"] = float(penalty.detach())
        reliable = (
            policy_logprobs_BGT[reliable_B],
            _select_groups(batch, reliable_B),
            _select_output(output, reliable_B),
        )
        rate_factor = config.guards.rate_factor(terms_of(*reliable[:2]))
        overall = _diagnose_all(*reliable)
        # Groups with the probation loss are trained on, so they are in the diagnostics, even if their log-probs are
        # wrong.
        described = reliable if config.probation_loss is None else (policy_logprobs_BGT, batch, output)
        metrics |= {"rate_factor": rate_factor} | bucket_figures("all", _diagnose_all(*described))
        for bucket in diagnose(*described, edges=STALENESS_EDGES):
            metrics |= bucket_figures(bucket_name(bucket), bucket)
        metrics |= {f"loss/{name}": float(value) for name, value in output.metrics.items()}
        self._watch, collapsed = self._watch.observe(
            overall.ess_fraction, below=config.guards.ess_threshold(overall.completions)
        )
        if collapsed:
            notices.append(collapse_notice(self._watch.mean or 0.0, objective.spec.name))
        return Estimate(loss=loss, rate_factor=rate_factor, metrics=metrics, notices=tuple(notices))

    def _batch(
        self, objective: Objective, rollouts: Rollouts, values: TokenValues | None
    ) -> tuple[RolloutBatch, Tensor | None]:
        """The batch with the advantages of this loss, and with a value head what it should have estimated."""
        mask_BGT, steps, returns_BGT = rollouts.mask_BGT, rollouts.steps, None
        token_advantages_BGT = None
        if values is not None and self._config.value is not None:
            assert steps is not None
            token_advantages_BGT, returns_BGT = _estimated(steps, values, mask_BGT, self._config.value)
        elif self._config.credits_steps and objective.spec.token_advantages:
            assert steps is not None
            token_advantages_BGT = step_advantages(steps, mask_BGT, objective.advantage)
        if token_advantages_BGT is None:
            advantages_BG = objective.advantages(rollouts.rewards_BG, mask_BGT.sum(dim=-1)).advantages_BG
        else:
            advantages_BG = masked_mean(token_advantages_BGT, mask_BGT)
        batch = RolloutBatch(
            behavior_logprobs_BGT=rollouts.behavior_logprobs_BGT,
            mask_BGT=mask_BGT,
            advantages_BG=advantages_BG,
            token_advantages_BGT=token_advantages_BGT,
            staleness_BG=rollouts.staleness_BG,
            reference_logprobs_BGT=rollouts.reference_logprobs_BGT,
        )
        return batch, returns_BGT

    def _dropped(self, rollouts: Rollouts) -> Tensor | None:
        """(B, G): completions without a gradient, because they were cut off; None where the run keeps them."""
        return rollouts.cut_off_BG if self.masks_truncated else None

    def _reliable(self, policy_logprobs_BGT: Tensor, batch: RolloutBatch, rollouts: Rollouts) -> Tensor:
        """(B,): groups whose log-probs may decide the learning rate and the masks.

        Groups on probation are excluded when they are out of bounds, and always when they train without log-probs. If
        that leaves no group, all count.
        """
        on_probation_B = rollouts.trust_B < 1.0
        reliable_B = ~on_probation_B
        if self._config.probation_loss is None and bool(on_probation_B.any()):
            reliable_B = self._config.probation.keep(policy_logprobs_BGT, batch, rollouts.trust_B)
        return reliable_B if bool(reliable_B.any()) else torch.ones_like(reliable_B)

    def _guarded(
        self, batch: RolloutBatch, policy_logprobs_BGT: Tensor, rollouts: Rollouts, reliable_B: Tensor
    ) -> tuple[RolloutBatch, dict[str, int]]:
        """The batch with masks and caps, and how many groups are on probation and how many of them are dropped."""
        guard_BGT = self._config.guards.keep(
            terms_of(policy_logprobs_BGT[reliable_B].detach(), _select_groups(batch, reliable_B))
        )
        if guard_BGT is not None:  # the masks read log-probs, so they apply to reliable groups only
            everywhere_BGT = torch.ones_like(batch.mask_BGT, dtype=guard_BGT.dtype)
            everywhere_BGT[reliable_B] = guard_BGT
            guard_BGT = everywhere_BGT
        probation = self._config.probation
        on_probation_B = rollouts.trust_B < 1.0
        counts = {"probation_groups": int(on_probation_B.sum()), "deflated_groups": 0}
        if (dropped_BG := self._dropped(rollouts)) is not None:
            counts["masked_completions"] = int(dropped_BG.sum())
            kept_BGT = spread(~dropped_BG, batch.mask_BGT)
            guard_BGT = kept_BGT if guard_BGT is None else guard_BGT * kept_BGT
        if self._config.probation_loss is None and bool(on_probation_B.any()):
            keep_B = probation.keep(policy_logprobs_BGT, batch, rollouts.trust_B)
            counts["deflated_groups"] = int((~keep_B).sum())
            kept_BGT = spread(keep_B, batch.mask_BGT)
            guard_BGT = kept_BGT if guard_BGT is None else guard_BGT * kept_BGT
            batch = replace(batch, weight_cap_BG=probation.caps(rollouts.trust_B, batch.mask_BGT.shape[1]))
        return replace(batch, guard_BGT=guard_BGT), counts

    def _output(
        self, objective: Objective, policy_logprobs_BGT: Tensor, rollouts: Rollouts, batch: RolloutBatch
    ) -> LossOutput:
        """The run's loss on all groups; with a probation loss, on the trusted ones only."""
        probation_loss, on_probation_B = self._config.probation_loss, rollouts.trust_B < 1.0
        if probation_loss is None or not bool(on_probation_B.any()):
            return objective.loss(policy_logprobs_BGT, batch)
        lengths_N = batch.mask_BGT.sum(dim=-1).flatten()
        parts = [
            (probation_loss, self._batch(probation_loss, rollouts, None)[0], on_probation_B),
            (objective, batch, ~on_probation_B),
        ]
        outputs = [
            (
                inside_B,
                loss.loss(
                    policy_logprobs_BGT[inside_B], replace(_select_groups(groups, inside_B), update_lengths_N=lengths_N)
                ),
            )
            for loss, groups, inside_B in parts
            if bool(inside_B.any())
        ]
        weights_BGT = torch.zeros_like(outputs[0][1].weights_BGT[:1]).expand(batch.mask_BGT.shape).clone()
        bounded_BGT = torch.zeros_like(batch.mask_BGT, dtype=torch.bool)
        for inside_B, output in outputs:
            weights_BGT[inside_B], bounded_BGT[inside_B] = output.weights_BGT, output.bounded_BGT
        return LossOutput(
            loss=torch.stack([output.loss for _, output in outputs]).sum(),
            metrics=outputs[-1][1].metrics,
            weights_BGT=weights_BGT,
            bounded_BGT=bounded_BGT,
        )


def _estimated(
    steps: StepRewards, values: TokenValues, mask_BGT: Tensor, config: ValueHeadConfig
) -> tuple[Tensor, Tensor]:
    """(advantages over the batch's mean and deviation, returns) of each token, from the average's values."""
    # A reward on an environment's token counts for the last token before it that the policy chose.
    rewards_BGT = _onto_mask(steps.rewards_BGT, mask_BGT)
    advantages_BGT, returns_BGT = gae(rewards_BGT, values.average_NT, mask_BGT, config.estimator)
    return whiten(advantages_BGT, mask_BGT), returns_BGT


def _onto_mask(rewards_BGT: Tensor, mask_BGT: Tensor) -> Tensor:
    """Rewards of tokens off the mask, moved to the nearest token before them on it, or to the first."""
    places_BGT = (mask_BGT.long().cumsum(-1) - 1).clamp(min=0)
    chosen_BGT = torch.zeros_like(rewards_BGT).scatter_add_(-1, places_BGT, rewards_BGT)
    return on_mask(chosen_BGT.gather(-1, places_BGT), mask_BGT)


def _select_groups(batch: RolloutBatch, inside_B: Tensor) -> RolloutBatch:
    """Some groups of a batch."""
    tensors: dict[str, Any] = {
        each.name: value[inside_B] for each in fields(batch) if isinstance(value := getattr(batch, each.name), Tensor)
    }
    return replace(batch, **tensors)


def _select_output(output: LossOutput, inside_B: Tensor) -> LossOutput:
    """The loss output of some groups."""
    return replace(output, weights_BGT=output.weights_BGT[inside_B], bounded_BGT=output.bounded_BGT[inside_B])


def _diagnose_all(policy_logprobs_BGT: Tensor, batch: RolloutBatch, output: LossOutput) -> StalenessDiagnostics:
    """Diagnostics of the batch as one bucket."""
    return diagnose(policy_logprobs_BGT, replace(batch, staleness_BG=None), output, edges=(0,))[0]


STALENESS_EDGES = (0, 1, 5, 17, 65, 257)
"""Least staleness of each bucket of the log, in updates; the last bucket is open."""

BUCKETS = ("0", "1-4", "5-16", "17-64", "65-256", "257+")
"""Names of the buckets in the log."""

_FIGURES = {
    "completions": "completions",
    "ess": "ess_fraction",
    "kl_k1": "kl_k1",
    "kl_k3": "kl_k3",
    "chi2": "chi2",
    "m2": "m2",
    "bounded_fraction": "bounded_fraction",
    "weight_max": "weight_max",
    "weight_variance": "weight_variance",
}
"""Attribute of `StalenessDiagnostics` by key in the log."""

_BOUNDED_LOSSES = frozenset({"topr", "gepo_t", "gex", "asympo", "asymre"})
"""Losses whose weights stay bounded however small the effective sample size is."""


def bucket_name(seen: StalenessDiagnostics) -> str:
    """Name of the bucket that these diagnostics describe."""
    return BUCKETS[STALENESS_EDGES.index(seen.staleness_from)]


def bucket_figures(bucket: str, seen: StalenessDiagnostics) -> dict[str, float]:
    """Diagnostics of one bucket under their keys in the log."""
    return {f"stale/{bucket}/{key}": getattr(seen, attribute) for key, attribute in _FIGURES.items()}


def collapse_notice(ess_fraction: float, loss: str) -> str:
    """Warning that the effective sample size has collapsed, with a remedy."""
    remedy = (
        f"{loss} bounds the damage; if the reward stalls, publish more often or lower learning_rate."
        if loss in _BOUNDED_LOSSES
        else 'Set loss.name = "topr", lower learning_rate, or reduce staleness (publish_every).'
    )
    return (
        f"only {ess_fraction:.1%} of a batch counts (effective sample size): the rollouts are far from the policy."
        f" {remedy}"
    )
