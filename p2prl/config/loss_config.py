"""The `[loss]` table of run.toml: the loss, its options, guards, probation and reference, checked to fit together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NoReturn, cast, get_args

from p2prl.algorithms.advantages import GROUPLESS, AdvantageConfig, AdvantageKind
from p2prl.algorithms.aggregation import AggregationConfig, AggregationKind
from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig
from p2prl.algorithms.loss_registry import BUILTIN_LOSSES, LOSSES, build_loss, loss_by_name
from p2prl.algorithms.objective import Objective
from p2prl.algorithms.process_rewards import RewardConfig
from p2prl.algorithms.step_credit import STEP_ADVANTAGES
from p2prl.algorithms.value_checks import require_choice, suggestion
from p2prl.errors import ConfigError, require
from p2prl.learner.training.loss_guards import GuardConfig
from p2prl.learner.training.loss_pipeline import LossPipelineConfig
from p2prl.learner.training.probation import ProbationConfig
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.value_head import ValueHeadConfig
from p2prl.protocol.manifests import Sampling

_REMOVED = "auto"
"""A name that earlier versions had: it chose by measured drift, and did worse than one loss for the whole run."""

_FOR_PROBATION = ("asympo", "asymre")
"""Built-in losses for groups on probation. `reinforce` reads no log-probs either, but it collapses under delay."""


def _suits_probation(name: str) -> bool:
    if name not in LOSSES.names() or name in BUILTIN_LOSSES:
        return name in _FOR_PROBATION
    return not loss_by_name(name).uses_behavior_logprobs


@dataclass(frozen=True, kw_only=True, slots=True)
class ReferenceTable:
    """The `[loss.reference]` table: the policy of the KL penalty, or the one `dpo` compares with."""

    kind: Literal["none", "first", "ema"] = "none"
    """`none`; `first`, the run's first weights; or `ema`, a moving average of all since."""
    beta: float = 0.0
    """Coefficient of the penalty (k3); 0 for none."""
    ema_rate: float = 1e-3
    """For `ema`: share of the difference to the policy's weights that the reference moves in one update."""

    def __post_init__(self) -> None:
        require("loss.reference.beta", self.beta, 0.0 <= self.beta < float("inf"), "0 or more")
        require("loss.reference.ema_rate", self.ema_rate, 0.0 < self.ema_rate < 1.0, "within 0..1, both excluded")


@dataclass(frozen=True, kw_only=True, slots=True)
class LossConfig:
    """The loss that trains the policy, with its guards, probation and reference."""

    name: str = "topr"
    """A name of `p2prl.algorithms.loss_registry`."""
    options: dict[str, object] = field(default_factory=dict)
    """Options of that loss (docs/algorithms.md)."""
    advantage: str = ""
    """Advantage estimator; empty for that of the loss's paper."""
    aggregation: str = ""
    """Aggregation of token losses into one number; empty for that of the loss's paper."""
    credit: Literal["auto", "completion", "step"] = "auto"
    """What a token answers for: the rewards of its own step and of those after it (`step`), or the completion's whole
    reward. `auto` is `step` where the run's reward judges steps."""
    value: ValueHeadConfig = field(default_factory=ValueHeadConfig)
    """Value head of `ppo`."""
    guards: GuardConfig = field(default_factory=GuardConfig)
    """Learning-rate brakes, token masks and the ESS warning."""
    trust: ProbationConfig = field(default_factory=ProbationConfig)
    """Probation of peers without history."""
    reference: ReferenceTable = field(default_factory=ReferenceTable)
    """Reference policy."""

    def build(self, sampling: Sampling, reward: RewardConfig) -> LossPipelineConfig:
        """The loss pipeline for a run with this sampling and reward. ConfigError names the conflicting setting."""
        objective = self._objective(sampling)
        self._check_reward(reward, objective)
        self._check_combination(sampling, objective)
        credits_steps = self._credits_steps(reward, objective)
        probation_loss = None
        if self.trust.loss:
            probation_loss = build_loss(self.trust.loss, max_completion_tokens=sampling.max_new_tokens)
        return LossPipelineConfig(
            objective=objective,
            guards=self.guards,
            probation=self.trust,
            probation_loss=probation_loss,
            reference=ReferencePenaltyConfig(beta=self.reference.beta),
            credits_steps=credits_steps,
            value=self.value if self.has_value_head else None,
        )

    @property
    def has_value_head(self) -> bool:
        """Whether the run trains a value head."""
        return self.name == "ppo" and self.value.head

    def reference_config(self) -> ReferenceConfig | None:
        """Settings of the reference policy; None when there is none."""
        if self.reference.kind == "none":
            return None
        return ReferenceConfig(ema_rate=self.reference.ema_rate if self.reference.kind == "ema" else 0.0)

    def _objective(self, sampling: Sampling) -> Objective:
        longest = sampling.max_new_tokens
        if self.name not in LOSSES.names():
            remedy = suggestion(self.name, LOSSES.names())
            if self.name == _REMOVED:
                remedy = f'Set loss.name = "{LossConfig().name}", the default, which stays stable at any staleness.'
            raise ConfigError(f"loss.name = {self.name!r} is not known", remedy=remedy)
        advantage = aggregation = None
        if self.advantage:
            require_choice("loss.advantage", self.advantage, get_args(AdvantageKind))
            advantage = AdvantageConfig(kind=cast(AdvantageKind, self.advantage))
        if self.aggregation:
            require_choice("loss.aggregation", self.aggregation, get_args(AggregationKind))
            aggregation = AggregationConfig(kind=cast(AggregationKind, self.aggregation), max_completion_tokens=longest)
        return build_loss(
            self.name,
            options=self.options,
            advantage=advantage,
            aggregation=aggregation,
            max_completion_tokens=longest,
        )

    def _credits_steps(self, reward: RewardConfig, objective: Objective) -> bool:
        """Whether tokens are credited with the rewards of steps. ConfigError where the loss cannot do so."""
        judges_steps = reward.process_weight > 0.0
        if self.credit == "step" and not judges_steps:
            _refuse('loss.credit = "step"', "this run's reward judges no steps", 'Remove it, or set "completion".')
        if self.credit == "completion" or not judges_steps:
            return False
        if not objective.spec.token_advantages:
            able = [each for each in BUILTIN_LOSSES if loss_by_name(each).token_advantages]
            raise ConfigError(
                f"loss.name = {self.name!r} takes one advantage per completion, and this run's reward judges steps",
                remedy='Set loss.credit = "completion", which gives every token the sum of its completion, or name'
                f" one of: {', '.join(able)}.",
            )
        if objective.advantage.kind not in STEP_ADVANTAGES and not self.has_value_head:
            raise ConfigError(
                f"loss.advantage = {objective.advantage.kind!r} has no meaning for the rewards of steps",
                remedy='Set loss.advantage = "mean", or loss.credit = "completion".',
            )
        return True

    def _check_reward(self, reward: RewardConfig, objective: Objective) -> None:
        """Refuse the `beta` advantage where the reward may lie outside 0..1."""
        # Scores added to the success reward may be negative or exceed 1 with it, so only bare success is sure to fit.
        bare = reward.outcome_weight == 0.0 and reward.process_weight == 0.0 and reward.success_weight <= 1.0
        if bare or objective.advantage.kind != "beta":
            return
        remedy = 'Set loss.advantage = "mean"'
        if self.name == "bnpo":
            remedy += ", or name another loss"
        raise ConfigError(
            'loss.advantage = "beta" needs a reward within 0..1, and this run\'s may lie outside', remedy=f"{remedy}."
        )

    def _check_combination(self, sampling: Sampling, objective: Objective) -> None:
        """Refuse settings that would have no effect, or another one than they name."""
        guards, trust, reference = self.guards, self.trust, self.reference
        if self.name == "m2po" and guards.second_moment is not None:
            _refuse("loss.guards.second_moment", "m2po drops these tokens itself", "Set the option budget of m2po.")
        if self.name == "dpo":
            for name in ("second_moment", "negative_tail"):
                if getattr(guards, name) is not None:
                    _refuse(f"loss.guards.{name}", "dpo compares whole completions", "Remove it.")
            if trust.probation_groups:
                _refuse("loss.trust.probation_groups", "dpo has no weights to bound", "Remove it.")
        self._check_probation()
        if self.has_value_head and self.advantage:
            _refuse(
                "loss.advantage", "the value head estimates advantages", "Remove it, or set loss.value.head = false."
            )
        if self.value != ValueHeadConfig() and self.name != "ppo":
            _refuse("loss.value", f"{self.name} has no value head", 'Remove it, or set loss.name = "ppo".')
        if reference.beta > 0 and reference.kind == "none":
            _refuse("loss.reference.beta", "there is no reference", 'Set loss.reference.kind to "first" or "ema".')
        if reference.kind != "none" and reference.beta == 0 and self.name != "dpo":
            _refuse("loss.reference.kind", f"{self.name} does not read a reference", "Set loss.reference.beta above 0.")
        if reference.kind != "ema" and reference.ema_rate != ReferenceTable().ema_rate:
            _refuse("loss.reference.ema_rate", "only a moving average has a rate", 'Remove it, or set kind = "ema".')
        if getattr(objective.config, "sharpness", None) == 0.0 and "nll_floor" in self.options:
            _refuse("loss.options.nll_floor", "without sharpness nothing is divided", "Set sharpness above 0.")
        if sampling.group_size == 1:
            self._check_single(objective)

    def _check_probation(self) -> None:
        """Refuse probation bounds and a probation loss that would never be used."""
        trust, default = self.trust, ProbationConfig()
        if trust.loss and not _suits_probation(trust.loss):
            raise ConfigError(
                f"loss.trust.loss = {trust.loss!r} reads the samplers' log-probs, collapses, or is not known",
                remedy=f"Choose one of: {', '.join(_FOR_PROBATION)}.",
            )
        if trust.loss and not trust.probation_groups:
            _refuse("loss.trust.loss", "no peer is on probation", "Set loss.trust.probation_groups.")
        for name in ("cap", "trusted_cap", "max_rise_nats", "max_fall_nats"):
            if getattr(trust, name) == getattr(default, name):
                continue
            if not trust.probation_groups:
                _refuse(f"loss.trust.{name}", "no peer is on probation", "Set loss.trust.probation_groups.")
            if trust.loss:
                why = "groups on probation train with loss.trust.loss, which has no such bound"
                _refuse(f"loss.trust.{name}", why, "Remove it, or loss.trust.loss.")

    def _check_single(self, objective: Objective) -> None:
        """Refuse losses that cannot learn from one completion per prompt."""
        alone = "with one completion per prompt every baseline is the reward itself"
        if self.name == "asymre":
            _refuse(f"loss.name = {self.name!r}", alone, _LARGER)
        if self.name == "dpo":
            _refuse("loss.name = 'dpo'", "with one completion per prompt there are no pairs", _LARGER)
        if self.trust.loss:
            _refuse("loss.trust.loss", alone, "Remove it, or make a run with --group-size 2 or more.")
        if objective.advantage.kind not in GROUPLESS and not self.has_value_head:
            _refuse("loss.advantage", alone, _SINGLE)


def check_dynamic_sampling(pipeline: LossPipelineConfig, sampling: Sampling) -> None:
    """Refuse to leave out groups of equal rewards where the loss learns from them."""
    setting, remedy = "learner.dynamic_sampling", "Remove it, or set it to 0."
    if sampling.group_size == 1:
        _refuse(setting, "with one completion per prompt every group has equal rewards", remedy)
    objective = pipeline.objective
    if pipeline.value is not None or objective.advantage.kind in GROUPLESS or objective.spec.name == "asymre":
        _refuse(setting, f"{objective.spec.name} as it is set learns from groups of equal rewards too", remedy)


_LARGER = "Make a run with --group-size 2 or more."
_SINGLE = 'Set loss.advantage = "none" or "reinforce_pp", or make a run with --group-size 2 or more.'


def _refuse(setting: str, why: str, remedy: str) -> NoReturn:
    raise ConfigError(f"{setting} has no meaning here: {why}", remedy=remedy)
