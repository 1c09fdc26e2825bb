"""From log-probs to one number to minimise: the run's loss with its guards, probation, reference and choice.

Everything a run may set around a loss meets here, and what it measured is described. The state is a handful of plain
numbers, kept in the checkpoint; apart from it the outcome depends on the batch alone, so that a replay repeats it.

Shape legend: B groups, G completions, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.diagnostics import StalenessDiagnostics, diagnose
from p2prl.algorithms.guards import spread
from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig, reference_penalty
from p2prl.algorithms.loss_selection import SelectionConfig, SelectionState, observe
from p2prl.algorithms.objective import Objective
from p2prl.algorithms.ratios import terms_of
from p2prl.learner.guards import EssWatch, GuardConfig
from p2prl.learner.probation import ProbationConfig

STALENESS_EDGES = (0, 1, 5, 17, 65, 257)
"""Updates: least staleness of each bucket of the log; the last is open."""

BUCKETS = ("0", "1-4", "5-16", "17-64", "65-256", "257+")
"""What they are called in the log."""

_BUCKET_FIGURES = {
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

_WITHSTANDS = frozenset({"gepo_t", "gex", "asympo", "asymre"})
"""Losses whose weights stay bounded however few completions count."""


@dataclass(frozen=True, kw_only=True)
class LossPipelineConfig:
    """A loss and what is put around it."""

    objectives: Mapping[str, Objective]
    """The loss; or, when a run lets it be chosen, every loss there is to choose from, by name."""
    guards: GuardConfig = field(default_factory=GuardConfig)
    """Masks, brakes and the warning."""
    trust: ProbationConfig = field(default_factory=ProbationConfig)
    """Probation."""
    unverified: Objective | None = None
    """The loss of groups on probation; None: the run's own."""
    reference: ReferencePenaltyConfig = field(default_factory=ReferencePenaltyConfig)
    """The pull towards a reference policy."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    """Borders of the choice, when there is one."""


@dataclass(frozen=True, kw_only=True)
class Rollouts:
    """A batch before its advantages: what the learner knows of B groups."""

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


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What one batch comes to."""

    loss: Tensor
    """Scalar to minimise."""
    rate_factor: float
    """On the learning rate, in (0, 1]."""
    metrics: dict[str, Any]
    """For the log (`docs/metrics.md`)."""
    notices: tuple[str, ...]
    """Sentences a person should read: a choice and why, a warning and its remedy."""


class LossPipeline:
    """The run's loss as it stands at an update."""

    def __init__(self, config: LossPipelineConfig) -> None:
        self._config = config
        self._choice: SelectionState | None = None
        if len(config.objectives) > 1:
            self._choice = SelectionState()
        self._watch = EssWatch()

    @classmethod
    def plain(cls, objective: Objective) -> LossPipeline:
        """This loss and nothing around it."""
        return cls(LossPipelineConfig(objectives={objective.spec.name: objective}))

    @property
    def trust(self) -> ProbationConfig:
        """The run's rule of probation."""
        return self._config.trust

    @property
    def objective(self) -> Objective:
        """The loss in use."""
        objectives = self._config.objectives
        return next(iter(objectives.values())) if self._choice is None else objectives[self._choice.loss]

    def state(self) -> dict[str, Any]:
        """What a checkpoint must hold: plain numbers and names."""
        choice = None if self._choice is None else asdict(self._choice)
        return {"ess_watch": asdict(self._watch), "choice": choice}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state. What another loss left behind is not taken over."""
        if "ess_watch" in state:
            self._watch = EssWatch(**state["ess_watch"])
        choice = state.get("choice")
        if self._choice is not None and choice and choice["loss"] in self._config.objectives:
            self._choice = SelectionState(**choice)

    def estimate(self, policy_logprobs_BGT: Tensor, rollouts: Rollouts) -> Estimate:
        """The loss of a batch; gradients flow to `policy_logprobs_BGT`. Goes on to the next state.

        Raises LocalProtocolError where the batch holds NaN, infinity or an empty completion.
        """
        notices: list[str] = []
        plain = _batch(self.objective, rollouts)
        believed_B = self._believed(policy_logprobs_BGT, plain, rollouts)
        if self._choice is not None:
            notices += self._choose(policy_logprobs_BGT[believed_B], _part(plain, believed_B))
        objective, config = self.objective, self._config
        batch, counts = self._guarded(objective, policy_logprobs_BGT, rollouts, believed_B)
        output = self._output(objective, policy_logprobs_BGT, rollouts, batch)
        loss = output.loss
        metrics: dict[str, Any] = {"loss_name": objective.spec.name, **counts}
        if config.reference.beta > 0:
            penalty = reference_penalty(policy_logprobs_BGT, batch, config.reference, objective.aggregation)
            loss = loss + penalty
            metrics["reference_penalty"] = float(penalty.detach())
        believed = policy_logprobs_BGT[believed_B], _part(batch, believed_B), _of(output, believed_B)
        rate_factor = config.guards.rate_factor(terms_of(*believed[:2]))
        whole = _whole(*believed)
        # Groups with a loss of their own are trained on, so they are described, whatever their log-probs are worth.
        described = believed if config.unverified is None else (policy_logprobs_BGT, batch, output)
        metrics |= {"rate_factor": rate_factor} | _figures("all", _whole(*described))
        for bucket in diagnose(*described, edges=STALENESS_EDGES):
            metrics |= _figures(BUCKETS[STALENESS_EDGES.index(bucket.staleness_from)], bucket)
        metrics |= {f"loss/{name}": float(value) for name, value in output.metrics.items()}
        self._watch, collapsed = self._watch.observe(
            whole.ess_fraction, below=config.guards.ess_border(whole.completions)
        )
        if collapsed:
            notices.append(_collapse(self._watch.mean or 0.0, objective.spec.name))
        return Estimate(loss=loss, rate_factor=rate_factor, metrics=metrics, notices=tuple(notices))

    def _believed(self, policy_logprobs_BGT: Tensor, batch: RolloutBatch, rollouts: Rollouts) -> Tensor:
        """(B,): groups whose log-probs may decide anything, the learning rate and the choice of the loss among it.

        Not those on probation that are out of bounds, nor any on probation where these train without log-probs. A
        batch of nothing else is judged as it is.
        """
        on_probation_B = rollouts.trust_B < 1.0
        believed_B = ~on_probation_B
        if self._config.unverified is None and bool(on_probation_B.any()):
            believed_B = self._config.trust.keep(policy_logprobs_BGT, batch, rollouts.trust_B)
        return believed_B if bool(believed_B.any()) else torch.ones_like(believed_B)

    def _choose(self, policy_logprobs_BGT: Tensor, plain: RolloutBatch) -> list[str]:
        """Look at the batch before it is trained on, so that the loss in use is the one the batch asks for."""
        assert self._choice is not None
        seen = _whole(policy_logprobs_BGT, plain, _nothing(policy_logprobs_BGT))
        self._choice, reason = observe(
            self._choice, ess_fraction=seen.ess_fraction, kl_per_token=seen.kl_k3, config=self._config.selection
        )
        return [reason] if reason else []

    def _guarded(
        self, objective: Objective, policy_logprobs_BGT: Tensor, rollouts: Rollouts, believed_B: Tensor
    ) -> tuple[RolloutBatch, dict[str, int]]:
        """The batch with masks and caps, and how many groups are on probation and how many of them are dropped."""
        batch = _batch(objective, rollouts)
        guard_BGT = self._config.guards.keep(
            terms_of(policy_logprobs_BGT[believed_B].detach(), _part(batch, believed_B))
        )
        if guard_BGT is not None:  # the masks read log-probs: they touch no others
            everywhere_BGT = torch.ones_like(batch.mask_BGT, dtype=guard_BGT.dtype)
            everywhere_BGT[believed_B] = guard_BGT
            guard_BGT = everywhere_BGT
        trust = self._config.trust
        on_probation_B = rollouts.trust_B < 1.0
        counts = {"probation_groups": int(on_probation_B.sum()), "deflated_groups": 0}
        if self._config.unverified is None and bool(on_probation_B.any()):
            keep_B = trust.keep(policy_logprobs_BGT, batch, rollouts.trust_B)
            counts["deflated_groups"] = int((~keep_B).sum())
            kept_BGT = spread(keep_B, batch.mask_BGT)
            guard_BGT = kept_BGT if guard_BGT is None else guard_BGT * kept_BGT
            batch = replace(batch, weight_cap_BG=trust.caps(rollouts.trust_B, batch.mask_BGT.shape[1]))
        return replace(batch, guard_BGT=guard_BGT), counts

    def _output(
        self, objective: Objective, policy_logprobs_BGT: Tensor, rollouts: Rollouts, batch: RolloutBatch
    ) -> LossOutput:
        """The run's loss on all groups; or on the trusted ones, and the log-prob-free one on the others."""
        unverified, on_probation_B = self._config.unverified, rollouts.trust_B < 1.0
        if unverified is None or not bool(on_probation_B.any()):
            return objective.loss(policy_logprobs_BGT, batch)
        lengths_N = batch.mask_BGT.sum(dim=-1).flatten()
        parts = [(unverified, _batch(unverified, rollouts), on_probation_B), (objective, batch, ~on_probation_B)]
        outputs = [
            (
                inside_B,
                loss.loss(policy_logprobs_BGT[inside_B], replace(_part(whole, inside_B), update_lengths_N=lengths_N)),
            )
            for loss, whole, inside_B in parts
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


def _batch(objective: Objective, rollouts: Rollouts) -> RolloutBatch:
    mask_BGT = rollouts.mask_BGT
    return RolloutBatch(
        behavior_logprobs_BGT=rollouts.behavior_logprobs_BGT,
        mask_BGT=mask_BGT,
        advantages_BG=objective.advantages(rollouts.rewards_BG, mask_BGT.sum(dim=-1)).advantages_BG,
        staleness_BG=rollouts.staleness_BG,
        reference_logprobs_BGT=rollouts.reference_logprobs_BGT,
    )


def _part(batch: RolloutBatch, inside_B: Tensor) -> RolloutBatch:
    """Some groups of a batch."""
    tensors: dict[str, Any] = {
        each.name: value[inside_B] for each in fields(batch) if isinstance(value := getattr(batch, each.name), Tensor)
    }
    return replace(batch, **tensors)


def _of(output: LossOutput, inside_B: Tensor) -> LossOutput:
    """What the loss gave for some groups."""
    return replace(output, weights_BGT=output.weights_BGT[inside_B], bounded_BGT=output.bounded_BGT[inside_B])


def _whole(policy_logprobs_BGT: Tensor, batch: RolloutBatch, output: LossOutput) -> StalenessDiagnostics:
    """One bucket of everything."""
    return diagnose(policy_logprobs_BGT, replace(batch, staleness_BG=None), output, edges=(0,))[0]


def _nothing(policy_logprobs_BGT: Tensor) -> LossOutput:
    """What is diagnosed before there is a loss."""
    zeros_BGT = torch.zeros_like(policy_logprobs_BGT.detach())
    return LossOutput(loss=zeros_BGT.sum(), metrics={}, weights_BGT=zeros_BGT, bounded_BGT=zeros_BGT.bool())


def _figures(bucket: str, seen: StalenessDiagnostics) -> dict[str, float]:
    return {f"stale/{bucket}/{key}": getattr(seen, name) for key, name in _BUCKET_FIGURES.items()}


def _collapse(ess: float, loss: str) -> str:
    remedy = (
        f"{loss} bounds what that can do; if the reward stalls, publish more often or lower learning_rate."
        if loss in _WITHSTANDS
        else 'Set loss.name = "gepo_t" or "auto", lower learning_rate, or make rollouts younger (publish_every).'
    )
    return f"only {ess:.1%} of a batch counts (effective sample size): the rollouts are far from the policy. {remedy}"
