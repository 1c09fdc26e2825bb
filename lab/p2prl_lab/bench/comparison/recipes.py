"""Recipes of on-policy training in one line: a loss and its options, such as `ppo:normalise=off:reference=ema`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from p2prl.algorithms.advantages import AdvantageConfig
from p2prl.algorithms.kl_penalty import ReferencePenaltyConfig
from p2prl.algorithms.loss_registry import build_loss
from p2prl.algorithms.objective import Objective
from p2prl.algorithms.ppo import ValueConfig
from p2prl.errors import ConfigError, require

Reference = Literal["none", "start", "ema"]
Samples = Literal["policy", "start"]
Credit = Literal["completion", "step"]

_MOST_PROMPTS = 256
_MOST_PASSES = 8
_TOKEN_CREDIT = ("ppo",)
"""Losses with a value head, which credits rewards to tokens."""

_Reader = Callable[[str, str], object]
"""(option, text) -> value; ConfigError on an invalid text."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A loss and the training around it."""

    text: str
    """Its text form."""
    objective: Objective
    normalise: bool = True
    """`ppo` only: advantages whitened over the tokens of a batch."""
    prompts: int = 16
    """Prompts of a batch, eight completions each."""
    passes: int = 2
    """Optimizer steps per batch, each on the whole batch."""
    reference: Reference = "none"
    """Reference policy: none, the initial policy, or a moving average of the policy. For `dpo` it is the reference of
    the loss, where `none` means the policy that sampled; for others a penalty pulls toward it."""
    pull: float = 0.05
    """Weight of the penalty (k3, `kl_penalty.reference_penalty`)."""
    rate: float = 0.05
    """Weight of the policy in the moving average at each batch."""
    credit: Credit = "completion"
    """Not for `ppo`: one advantage for a completion from the sum of its rewards, or one for each token from the rewards
    of its steps (`step_credit`)."""
    samples: Samples = "policy"
    """Source of completions: the policy itself, or always the initial policy."""
    value_weight: float = 0.5
    """`ppo` only: weight of the value loss."""
    value: ValueConfig = field(default_factory=ValueConfig)
    """`ppo` only: value clip and λ."""

    @property
    def has_value(self) -> bool:
        """Whether a value head is trained, and rewards are credited to tokens."""
        return self.objective.spec.name in _TOKEN_CREDIT

    @property
    def penalty(self) -> ReferencePenaltyConfig | None:
        """The penalty toward the reference, when it is a separate term."""
        if self.reference == "none" or self.objective.spec.name == "dpo":
            return None
        return ReferencePenaltyConfig(beta=self.pull)

    def __post_init__(self) -> None:
        require("prompts", self.prompts, 1 <= self.prompts <= _MOST_PROMPTS, f"1 to {_MOST_PROMPTS}")
        require("passes", self.passes, 1 <= self.passes <= _MOST_PASSES, f"1 to {_MOST_PASSES}")
        require("rate", self.rate, 0.0 <= self.rate <= 1.0, "within 0..1")
        require("pull", self.pull, 0.0 <= self.pull <= 1e3, "within 0..1000")
        if self.credit == "step" and (self.has_value or not self.objective.spec.token_advantages):
            why = "its value head credits tokens" if self.has_value else "it takes one advantage per completion"
            raise ConfigError(
                f"credit = step has no meaning for {self.objective.spec.name}: {why}",
                remedy="Remove credit, or name a loss such as gepo_t or grpo.",
            )
        require("value", self.value_weight, 0.0 <= self.value_weight <= 1e3, "within 0..1000")


def parse_recipe(text: str, *, max_completion_tokens: int) -> Recipe:
    """Parse a recipe; ConfigError on an invalid one.

    `loss[:option=value…]`: options are `normalise=on|off`, `prompts`, `passes`, `reference=none|start|ema`, `pull`,
    `rate`, `samples=policy|start`, `credit=completion|step`, `value`, `lambda`, `advantage`, and those of the loss
    itself (`dpo:beta=0.3`).
    """
    name, *settings = text.strip().split(":")
    options: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key in options:
            raise ConfigError(f"unknown option {setting!r}", remedy="Write options as in ppo:normalise=off:prompts=4.")
        options[key] = value
    own = {key: options.pop(key) for key in list(options) if key in _READERS}
    for key in ("normalise", "value", "lambda"):
        if key in own and name not in _TOKEN_CREDIT:
            raise ConfigError(f"{text!r}: {name} has no option {key}", remedy=f"Remove {key}; it is an option of ppo.")
    advantage = own.pop("advantage", None)
    objective = build_loss(
        name,
        options={key: _number(value) for key, value in options.items()},
        advantage=None if advantage is None else AdvantageConfig(kind=advantage),  # type: ignore[arg-type]
        max_completion_tokens=max_completion_tokens,
    )
    fields: dict[str, object] = {}
    for key, value in own.items():
        name_of_field, read = _READERS[key]
        fields[name_of_field] = read(key, value)
    return Recipe(text=text.strip(), objective=objective, **fields)  # type: ignore[arg-type]


def _number(value: str) -> float | str:
    try:
        return float(value)
    except ValueError:
        return value


def _read_number(key: str, value: str) -> float:
    number = _number(value)
    if isinstance(number, str):
        raise ConfigError(f"{key} = {value!r} is not a number", remedy=f"Set {key} to a number.")
    return number


def _read_count(key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit()):
        raise ConfigError(f"{key} = {value!r} is not an integer", remedy=f"Set {key} to an integer.")
    return int(value)


def _read_choice(choices: Mapping[str, object]) -> _Reader:
    def read(key: str, value: str) -> object:
        if value not in choices:
            raise ConfigError(f"{key} = {value!r} is not valid", remedy=f"Choose one of {', '.join(choices)}.")
        return choices[value]

    return read


_READERS: Mapping[str, tuple[str, _Reader]] = {
    "normalise": ("normalise", _read_choice({"on": True, "off": False})),
    "prompts": ("prompts", _read_count),
    "passes": ("passes", _read_count),
    "reference": ("reference", _read_choice({kind: kind for kind in get_args(Reference)})),
    "pull": ("pull", _read_number),
    "rate": ("rate", _read_number),
    "samples": ("samples", _read_choice({kind: kind for kind in get_args(Samples)})),
    "credit": ("credit", _read_choice({kind: kind for kind in get_args(Credit)})),
    "value": ("value_weight", _read_number),
    "lambda": ("value", lambda key, value: ValueConfig(gae_lambda=_read_number(key, value))),
    "advantage": ("advantage", lambda _, value: value),
}
"""Option -> field of `Recipe` and parser of its text."""
