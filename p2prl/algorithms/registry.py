"""Losses by name, each with its config and the advantage and aggregation its paper uses.

`build_loss` turns names and options into one `Objective`, and refuses combinations that mean nothing.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType, NoneType
from typing import Any

from torch import Tensor

from p2prl.algorithms.advantages import AdvantageConfig, AdvantageKind, Advantages, compute_advantages
from p2prl.algorithms.aggregation import AggregationConfig, AggregationKind
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.config_checks import suggestion
from p2prl.algorithms.decoupled_ppo import A3poConfig, DecoupledPpoConfig, a3po, decoupled_ppo
from p2prl.algorithms.dpo import DpoConfig, dpo
from p2prl.algorithms.gepo import (
    EqpConfig,
    GepoConfig,
    GepoPaperConfig,
    GepoPlusConfig,
    eqp,
    gepo,
    gepo_paper,
    gepo_plus,
)
from p2prl.algorithms.gepo_tapered import GepoTConfig, GexConfig, gepo_t, gex
from p2prl.algorithms.grpo import DapoConfig, GrpoConfig, TwoSidedConfig, bnpo, dapo, dr_grpo, grpo, two_sided
from p2prl.algorithms.gspo import GspoConfig, gspo
from p2prl.algorithms.logprob_free import AsympoConfig, AsymreConfig, asympo, asymre
from p2prl.algorithms.m2po import M2poConfig, m2po
from p2prl.algorithms.masked_losses import DppoConfig, OpsmConfig, dppo, opsm
from p2prl.algorithms.ppo import PpoConfig, ppo
from p2prl.algorithms.reinforce import (
    CispoConfig,
    ReinforceConfig,
    SeqMisConfig,
    TisConfig,
    ToprConfig,
    cispo,
    reinforce,
    seq_mis,
    tis,
    topr,
)
from p2prl.errors import ConfigError

LossFunction = Callable[[Tensor, RolloutBatch, Any, AggregationConfig], LossOutput]
"""(policy_logprobs_BGT, batch, the loss's own config, aggregation) -> LossOutput. Pure."""


@dataclass(frozen=True, kw_only=True)
class LossSpec:
    """One loss as the registry knows it."""

    name: str
    """What a run's configuration calls it."""
    function: LossFunction
    """The loss."""
    config_type: type[Any]
    """Its frozen config; all fields have defaults."""
    advantage: AdvantageKind = "mean"
    """The paper's advantage."""
    aggregation: AggregationKind = "seq_mean"
    """The paper's aggregation."""
    advantages: frozenset[AdvantageKind] | None = None
    """Advantages the loss has a meaning with; None: all."""
    aggregations: frozenset[AggregationKind] | None = None
    """Aggregations the loss has a meaning with; None: all."""
    uses_behavior_logprobs: bool = True
    """False: serves groups whose log-probs are not trusted yet."""
    needs_whole_groups: bool = False
    """True: a part of a batch may not split a group."""
    needs_staleness: bool = False
    """True: the batch must say how stale each completion is."""
    result_version: int = 1
    """Raised when the loss's numbers change, so that benchmarks do not use results of the older loss again."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss with all its knobs set. Pure: the same tensors give the same numbers."""

    spec: LossSpec
    """The loss."""
    config: Any
    """An instance of the spec's config type."""
    advantage: AdvantageConfig
    """How rewards become advantages."""
    aggregation: AggregationConfig
    """How token losses become one."""

    def advantages(self, rewards_BG: Tensor, lengths_BG: Tensor | None = None) -> Advantages:
        """Advantages of these rewards; see `compute_advantages`."""
        return compute_advantages(rewards_BG, self.advantage, lengths_BG=lengths_BG)

    def loss(self, policy_logprobs_BGT: Tensor, batch: RolloutBatch) -> LossOutput:
        """The loss of this batch; gradients flow to `policy_logprobs_BGT`."""
        return self.spec.function(policy_logprobs_BGT, batch, self.config, self.aggregation)


_SPECS = (
    LossSpec(name="grpo", function=grpo, config_type=GrpoConfig, advantage="mean_std"),
    LossSpec(name="dr_grpo", function=dr_grpo, config_type=GrpoConfig, aggregation="fixed_length"),
    LossSpec(name="dapo", function=dapo, config_type=DapoConfig, advantage="mean_std", aggregation="token_mean"),
    LossSpec(name="bnpo", function=bnpo, config_type=GrpoConfig, advantage="beta", aggregation="token_mean"),
    LossSpec(name="two_sided", function=two_sided, config_type=TwoSidedConfig, advantage="mean_std"),
    LossSpec(name="gspo", function=gspo, config_type=GspoConfig, advantage="mean_std"),
    LossSpec(name="gepo", function=gepo, config_type=GepoConfig),
    LossSpec(name="gepo_paper", function=gepo_paper, config_type=GepoPaperConfig),
    LossSpec(name="gepo_plus", function=gepo_plus, config_type=GepoPlusConfig),
    LossSpec(name="eqp", function=eqp, config_type=EqpConfig, needs_whole_groups=True),
    LossSpec(name="gepo_t", function=gepo_t, config_type=GepoTConfig),
    LossSpec(name="gex", function=gex, config_type=GexConfig, needs_whole_groups=True),
    LossSpec(name="reinforce", function=reinforce, config_type=ReinforceConfig, uses_behavior_logprobs=False),
    LossSpec(name="tis", function=tis, config_type=TisConfig),
    LossSpec(name="cispo", function=cispo, config_type=CispoConfig, advantage="mean_std", aggregation="token_mean"),
    LossSpec(name="topr", function=topr, config_type=ToprConfig),
    LossSpec(name="seq_mis", function=seq_mis, config_type=SeqMisConfig),
    LossSpec(name="m2po", function=m2po, config_type=M2poConfig, advantage="mean_std", aggregation="token_mean"),
    LossSpec(name="decoupled_ppo", function=decoupled_ppo, config_type=DecoupledPpoConfig, advantage="mean_std"),
    LossSpec(name="a3po", function=a3po, config_type=A3poConfig, advantage="mean_std", needs_staleness=True),
    LossSpec(name="opsm", function=opsm, config_type=OpsmConfig, advantage="mean_std"),
    LossSpec(name="dppo", function=dppo, config_type=DppoConfig, aggregation="token_mean"),
    LossSpec(
        name="asympo", function=asympo, config_type=AsympoConfig, advantage="mean_std", uses_behavior_logprobs=False
    ),
    LossSpec(
        name="asymre",
        function=asymre,
        config_type=AsymreConfig,
        advantages=frozenset({"mean", "opo", "rloo"}),
        uses_behavior_logprobs=False,
    ),
    LossSpec(name="ppo", function=ppo, config_type=PpoConfig, aggregation="token_mean"),
    LossSpec(
        name="dpo",
        function=dpo,
        config_type=DpoConfig,
        aggregations=frozenset({"seq_mean"}),
        needs_whole_groups=True,
    ),
)

LOSSES: Mapping[str, LossSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})
"""Every loss a learner offers."""


def loss_by_name(name: str) -> LossSpec:
    """The loss called `name`. Raises ConfigError with the nearest name as remedy."""
    try:
        return LOSSES[name]
    except KeyError:
        raise ConfigError(f"loss = {name!r} is not known", remedy=suggestion(name, LOSSES)) from None


def build_loss(
    name: str,
    *,
    options: Mapping[str, object] | None = None,
    advantage: AdvantageConfig | None = None,
    aggregation: AggregationConfig | None = None,
    max_completion_tokens: int | None = None,
) -> Objective:
    """The objective called `name`; see `build_objective`. Raises ConfigError for an unknown name too."""
    return build_objective(
        loss_by_name(name),
        options=options,
        advantage=advantage,
        aggregation=aggregation,
        max_completion_tokens=max_completion_tokens,
    )


def build_objective(
    spec: LossSpec,
    *,
    options: Mapping[str, object] | None = None,
    advantage: AdvantageConfig | None = None,
    aggregation: AggregationConfig | None = None,
    max_completion_tokens: int | None = None,
) -> Objective:
    """The loss of `spec` with its paper's advantage and aggregation unless others are given.

    `options` are fields of the loss's config; `max_completion_tokens` is the run's completion limit, which dr_grpo's
    default aggregation divides by. Raises ConfigError, naming the field, for an unknown option, a value out of range,
    and a combination without meaning.
    """
    advantage = advantage or AdvantageConfig(kind=spec.advantage)
    aggregation = aggregation or AggregationConfig(kind=spec.aggregation, max_completion_tokens=max_completion_tokens)
    _refuse("advantage.kind", advantage.kind, spec.advantages, spec.name)
    _refuse("aggregation.kind", aggregation.kind, spec.aggregations, spec.name)
    return Objective(spec=spec, config=_config(spec, options or {}), advantage=advantage, aggregation=aggregation)


def _config(spec: LossSpec, options: Mapping[str, object]) -> Any:
    known = {field.name for field in fields(spec.config_type)}
    for option in options:
        if option not in known:
            remedy = suggestion(option, known) if known else f"{spec.name} has no options"
            raise ConfigError(f"loss {spec.name!r} has no option {option!r}", remedy=remedy)
    hints = typing.get_type_hints(spec.config_type)
    for option, value in options.items():
        _check_type(option, spec.name, value, hints[option])
    return spec.config_type(**options)


def _check_type(option: str, loss: str, value: object, hint: Any) -> None:
    """Refuse what is not of a config field's type: a number, a choice among texts, or either of these or nothing."""
    arms = typing.get_args(hint) if NoneType in typing.get_args(hint) else (hint,)
    if value is None and NoneType in arms:
        return
    kind = next(arm for arm in arms if arm is not NoneType)
    if typing.get_origin(kind) is typing.Literal:
        choices = typing.get_args(kind)
        right, expected = isinstance(value, str), f"text, one of {', '.join(map(repr, choices))}"
    elif kind is bool:
        right, expected = isinstance(value, bool), "true or false"
    elif kind is int:
        right, expected = isinstance(value, int) and not isinstance(value, bool), "a whole number"
    else:
        right, expected = _is_number(value), "a finite number"
    if not right:
        raise ConfigError(
            f"option {option!r} of loss {loss!r} must be {expected}, not {repr(value)[:60]}",
            remedy=f"Set {option} to {expected}, or leave it out.",
        )


def _is_number(value: object) -> bool:
    # true and false are ints to Python, and an int may be too long to be a float.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _refuse(field: str, kind: str, allowed: frozenset[Any] | None, name: str) -> None:
    if allowed is not None and kind not in allowed:
        raise ConfigError(
            f"{field} = {kind!r} has no meaning with loss {name!r}",
            remedy=f"Set {field} to one of: {', '.join(sorted(allowed))}",
        )
