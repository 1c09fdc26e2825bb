"""A fully configured loss: options, advantage and aggregation, validated together.

Meaningless combinations are rejected with the field's name.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any

from torch import Tensor

from p2prl.algorithms.advantages import AdvantageConfig, Advantages, compute_advantages
from p2prl.algorithms.aggregation import AggregationConfig
from p2prl.algorithms.batch import LossOutput, RolloutBatch
from p2prl.algorithms.loss_spec import LossSpec
from p2prl.algorithms.value_checks import suggestion
from p2prl.errors import ConfigError, LocalProtocolError


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A fully configured loss. Pure: the same tensors give the same numbers."""

    spec: LossSpec
    """The loss."""
    config: Any
    """An instance of the spec's config type."""
    advantage: AdvantageConfig
    """Advantage estimator."""
    aggregation: AggregationConfig
    """Aggregation of token losses."""

    def advantages(self, rewards_BG: Tensor, lengths_BG: Tensor | None = None) -> Advantages:
        """Advantages of these rewards; see `compute_advantages`."""
        return compute_advantages(rewards_BG, self.advantage, lengths_BG=lengths_BG)

    def loss(self, policy_logprobs_BGT: Tensor, batch: RolloutBatch) -> LossOutput:
        """The loss of this batch; gradients flow to `policy_logprobs_BGT`.

        LocalProtocolError for token advantages that the loss does not take.
        """
        if batch.token_advantages_BGT is not None and not self.spec.token_advantages:
            raise LocalProtocolError(f"{self.spec.name} takes one advantage per completion, not one per token")
        return self.spec.function(policy_logprobs_BGT, batch, self.config, self.aggregation)


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
    and a meaningless combination.
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
            remedy = suggestion(option, known) if known else f"Leave it out: {spec.name} has no options."
            raise ConfigError(f"loss {spec.name!r} has no option {option!r}", remedy=remedy)
    hints = typing.get_type_hints(spec.config_type)
    for option, value in options.items():
        _check_type(option, spec.name, value, hints[option])
    return spec.config_type(**options)


def _check_type(option: str, loss: str, value: object, hint: Any) -> None:
    """Reject a value that does not have a config field's type: a number or a choice of texts, possibly optional."""
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
        right, expected = isinstance(value, int) and not isinstance(value, bool), "an integer"
    else:
        right, expected = _is_number(value), "a finite number"
    if not right:
        raise ConfigError(
            f"option {option!r} of loss {loss!r} must be {expected}, not {repr(value)[:60]}",
            remedy=f"Set {option} to {expected}, or omit it.",
        )


def _is_number(value: object) -> bool:
    # bool is an int in Python, and an int may be too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _refuse(field: str, kind: str, allowed: frozenset[Any] | None, name: str) -> None:
    if allowed is not None and kind not in allowed:
        raise ConfigError(
            f"{field} = {kind!r} cannot be used with loss {name!r}",
            remedy=f"Set {field} to one of: {', '.join(sorted(allowed))}",
        )
