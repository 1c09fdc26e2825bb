"""Methods to compare: a loss with options and additions, such as `gepo_t:cap=1.5:advantage=mean_std+brake`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from p2prl.algorithms.advantages import AdvantageConfig, off_policy_optimal_baseline
from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.guards import kl_brake, vcpo_factor
from p2prl.algorithms.loss_registry import loss_by_name
from p2prl.algorithms.objective import Objective, build_objective
from p2prl.errors import ConfigError
from p2prl.patches.dead_band import widest_band_ulp
from p2prl.patches.words import BF16
from p2prl_lab.bench.staleness.ablated_loss import ABLATED
from p2prl_lab.bench.training.training_plan import TrainingPlan

REQUIRED = math.nan
"""In place of a default value: the value must be given."""

ADDITIONS: Mapping[str, float | None] = MappingProxyType(
    {
        "brake": 0.05,
        "vcpo": None,
        "age": 64.0,
        "patience": 0.1,
        "opob": None,
        "average": 0.95,
        "published": 0.95,
        "replay": 8,
        "decay": 0.1,
        "beta2": 0.999,
        "amsgrad": None,
        "gac": 0.0,
        "band": 1.0,
        "lr": REQUIRED,
    }
)
"""Additions to any loss, with their default values (None: takes no value).

brake: learning rate × min(1, √(value/KL)).
vcpo: learning rate × √(ESS/n).
age: learning rate × 1/√(1 + a/value), a the mean age of the batch in updates.
patience: learning rate × value while every rollout is the starting policy's, which says nothing new after a while.
opob: the baseline is VCPO's, with the least variance of the gradient off policy; for the advantages mean and mean_std.
average: the evaluated policy is an exponential moving average of the weights with decay `value`.
published: the same, and samplers use it too.
replay: half of every gradient comes from the batch `value` updates ago.
decay: the learning rate falls to the fraction `value` along a half cosine.
beta2: Adam's β₂, instead of .99.
gac: without what a gradient has in common with the one before, beyond a cosine of `value`; see `GradientAlignment`.
amsgrad: learning rate × what `GlobalAmsgrad` gives for the gradient's norm.
band: samplers use bf16 weights, each updated only when it differs from the learner's by more than `value` ulp; 0 only
rounds.
lr: the method's own learning rate, instead of the plan's."""

_BELOW_ONE = ("average", "published", "decay", "beta2", "patience", "lr")
_FROM_ZERO = ("gac",)
_WHOLE = {"replay": range(1, 1001), "band": range(widest_band_ulp(BF16) + 1)}
"""Legal values of additions that take an integer."""

_UNUSABLE = {"dpo": "it needs a reference policy", "ppo": "it needs a value head"}
_CHOICES = ("advantage", "aggregation")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A parsed method."""

    text: str
    """Its text form."""
    objective: Objective
    additions: Mapping[str, float]
    """Value of each addition; 1 for those without a value. See ADDITIONS."""

    def learning_rate(self, plan: TrainingPlan) -> float:
        """The learning rate of this method in a run of this plan."""
        return self.additions.get("lr", plan.learning_rate)

    def advantages(
        self,
        rewards_BG: Tensor,
        lengths_BG: Tensor,
        sequence_log_ratios_BG: Tensor,
        score_norms_BG: Tensor | None,
    ) -> Tensor:
        """Advantages of one batch. `score_norms_BG` is read by +opob only; see `off_policy_optimal_baseline`."""
        found = self.objective.advantages(rewards_BG, lengths_BG)
        if "opob" not in self.additions or score_norms_BG is None:
            return found.advantages_BG
        cfg = self.objective.advantage
        centered_BG = rewards_BG - off_policy_optimal_baseline(rewards_BG, sequence_log_ratios_BG, score_norms_BG)
        if cfg.kind == "mean_std":
            centered_BG = centered_BG / (rewards_BG.std(dim=-1, keepdim=True) + cfg.std_epsilon)
        return torch.where(found.zero_variance_B.unsqueeze(-1), torch.zeros_like(centered_BG), centered_BG)

    def rate_factor(
        self,
        kl_per_token: Tensor,
        sequence_log_ratios: Tensor,
        *,
        done: float = 0.0,
        age: float = 0.0,
        is_offline: bool = False,
    ) -> float:
        """Factor on the learning rate, in (0, 1], after a fraction `done` of the updates (product over additions).

        `age` is the batch's mean delay in updates; `is_offline`: after the first update, all of it is the starting
        policy's.
        """
        factor = 1.0
        if "brake" in self.additions:
            factor *= float(kl_brake(kl_per_token, target_kl=self.additions["brake"]))
        if "vcpo" in self.additions:
            factor *= float(vcpo_factor(sequence_log_ratios))
        if "age" in self.additions:
            factor /= math.sqrt(1 + age / self.additions["age"])
        if "patience" in self.additions and is_offline:
            factor *= self.additions["patience"]
        if "decay" in self.additions:
            least = self.additions["decay"]
            factor *= least + (1 - least) * (1 + math.cos(math.pi * done)) / 2
        return factor


@cache
def parse_method(text: str, *, max_completion_tokens: int) -> Method:
    """Parse a method; ConfigError on an unknown loss, option or addition."""
    body, *added = text.strip().split("+")
    name, *settings = body.split(":")
    if name in _UNUSABLE:
        raise ConfigError(f"{name!r} cannot be benchmarked here: {_UNUSABLE[name]}", remedy="Choose another loss.")
    options: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"unknown option {setting!r}", remedy="Write options as in gepo_t:cap=1.5:taper=token.")
        if key in options:
            raise ConfigError(f"{text!r}: {key!r} is set twice", remedy="Set each option at most once.")
        number = None if key in _CHOICES else _number(value)  # a choice is a name, even when it looks like a number
        options[key] = value if number is None else number
    choices: dict[str, Any] = {choice: options.pop(choice) for choice in _CHOICES if choice in options}
    objective = build_objective(
        ABLATED if name == ABLATED.name else loss_by_name(name),
        options=options,
        advantage=AdvantageConfig(kind=choices["advantage"]) if "advantage" in choices else None,
        aggregation=_aggregation(choices["aggregation"], max_completion_tokens) if "aggregation" in choices else None,
        max_completion_tokens=max_completion_tokens,
    )
    additions = _additions(text, added)
    if "opob" in additions and objective.advantage.kind not in ("mean", "mean_std"):
        raise ConfigError(
            f"{text!r}: +opob replaces the baseline of mean and mean_std, not of {objective.advantage.kind}",
            remedy="Add :advantage=mean, or remove +opob.",
        )
    return Method(text=text.strip(), objective=objective, additions=additions)


def _aggregation(kind: Any, max_completion_tokens: int) -> AggregationConfig:
    return AggregationConfig(kind=kind, max_completion_tokens=max_completion_tokens)


def _additions(text: str, added: list[str]) -> Mapping[str, float]:
    found: dict[str, float] = {}
    for part in added:
        name, equals, written = part.partition("=")
        if name not in ADDITIONS or name in found:
            remedy = f"Use each of +{' +'.join(ADDITIONS)} at most once."
            raise ConfigError(f"{text!r}: unknown or repeated addition {name!r}", remedy=remedy)
        default, value = ADDITIONS[name], _number(written)
        legal = value is not None and (value > 0 or (value == 0 and name in _FROM_ZERO))
        if value is not None and name in (*_BELOW_ONE, *_FROM_ZERO):
            legal = legal and value < 1
        if name in _WHOLE:
            legal = value in _WHOLE[name]
        if default is not None and math.isnan(default) and not (equals and legal):
            raise ConfigError(f"{text!r}: invalid value in {part!r}", remedy=f"Write +{name}=VALUE, such as +lr=1e-3.")
        if equals and (default is None or not legal):
            raise ConfigError(f"{text!r}: invalid value in {part!r}", remedy=f"Omit the value of +{name}.")
        found[name] = value if equals and value is not None else (1.0 if default is None else default)
    if {"average", "published"} <= set(found):
        raise ConfigError(f"{text!r}: +published already includes +average", remedy="Remove +average.")
    return MappingProxyType(found)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
