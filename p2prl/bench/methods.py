"""A method: a loss by its registry name, options of that loss, and guards: `gex+brake`, `gepo_t:cap=1.5+vcpo`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from p2prl.algorithms.guards import kl_brake, vcpo_factor
from p2prl.algorithms.registry import Objective, build_loss
from p2prl.errors import ConfigError

GUARDS = ("brake", "vcpo")
_UNUSABLE = {"dpo": "it needs a reference policy", "ppo": "it needs a value head"}


@dataclass(frozen=True, kw_only=True)
class Method:
    """What is compared."""

    text: str
    """How it is written."""
    objective: Objective
    guards: frozenset[str]

    def rate_factor(self, kl_per_token: Tensor, sequence_log_ratios: Tensor) -> float:
        """Factor on the learning rate, in (0, 1]: the product of the guards'."""
        factor = 1.0
        if "brake" in self.guards:
            factor *= float(kl_brake(kl_per_token))
        if "vcpo" in self.guards:
            factor *= float(vcpo_factor(sequence_log_ratios))
        return factor


def parse_method(text: str, *, max_completion_tokens: int) -> Method:
    """The method that `text` names; ConfigError on an unknown loss, option or guard."""
    body, *guards = text.strip().split("+")
    for guard in guards:
        if guard not in GUARDS or guards.count(guard) > 1:
            raise ConfigError(f"{text!r}: no guard {guard!r}", remedy=f"Add each of +{' +'.join(GUARDS)} at most once.")
    name, *settings = body.split(":")
    if name in _UNUSABLE:
        raise ConfigError(f"{name!r} cannot be benchmarked here: {_UNUSABLE[name]}", remedy="Choose another loss.")
    options: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"{setting!r} is no option", remedy="Write options as in gepo_t:cap=1.5:taper=token.")
        try:
            options[key] = float(value)
        except ValueError:
            options[key] = value
    objective = build_loss(name, options=options, max_completion_tokens=max_completion_tokens)
    return Method(text=text.strip(), objective=objective, guards=frozenset(guards))
