"""Scoring spec: the scorers of a data set, their options and weights, as canonical JSON in the run manifest.

A validator reads a stranger's spec, so `parse_spec` accepts exactly the text that `scoring_spec` writes: sorted keys,
no spaces, no unknown key, no option that repeats its default. One scoring has one text, and so one manifest digest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from p2prl.errors import ConfigError, RemoteProtocolError, require
from p2prl.protocol import limits
from p2prl.tasks.score_bound import MAX_SCORE
from p2prl.tasks.scorers.length_penalty import LengthPenalty
from p2prl.tasks.scorers.spec_options import SCORER_OPTIONS, OptionValue, option_problem, unknown_option, unknown_scorer

MAX_REWARDS = 16
"""Scorers of one data set: TRL and verl recipes combine up to five."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reward:
    """One scorer with its weight and options."""

    scorer: str
    """A key of `SCORER_OPTIONS`."""
    weight: float = 1.0
    """Factor of its result in the sum. Finite, not 0, within ±100; negative for a penalty."""
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    """Its options by name; an option that is left out has its default."""

    def __post_init__(self) -> None:
        """`ConfigError` for an unknown scorer or option, or a value outside its range."""
        if self.scorer not in SCORER_OPTIONS:
            raise unknown_scorer(self.scorer)
        legal = math.isfinite(self.weight) and 0 < abs(self.weight) <= MAX_SCORE
        require(f"weight of {self.scorer}", self.weight, legal, f"within ±{MAX_SCORE:g} and not 0")
        known = SCORER_OPTIONS[self.scorer]
        for name, value in self.options.items():
            if name not in known:
                raise unknown_option(self.scorer, name)
            if problem := option_problem(known[name], value):
                raise ConfigError(f"{self.scorer}: {name} is {str(value)[:64]!r}", remedy=f"Set {name} to {problem}.")
        for name, option in known.items():
            if option.required and name not in self.options:
                raise ConfigError(
                    f"the scorer {self.scorer!r} needs {name}", remedy=f"Write it as {option.example or name}."
                )

    def option(self, name: str) -> OptionValue:
        """An option's value, or its default."""
        return self.options.get(name, SCORER_OPTIONS[self.scorer][name].default)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scoring:
    """The scoring of a data set: a weighted sum of scorers, and a penalty for length."""

    rewards: tuple[Reward, ...]
    length_penalty: LengthPenalty | None = None

    def __post_init__(self) -> None:
        count = len(self.rewards)
        require("number of scorers", count, 1 <= count <= MAX_REWARDS, f"within 1..{MAX_REWARDS}")

    @property
    def full_value(self) -> float:
        """The sum for a completion that does all it is paid for: every scorer with a positive weight gives 1."""
        return sum(max(0.0, reward.weight) for reward in self.rewards)

    def penalty(self, tokens: int) -> float:
        """The penalty for a completion's length in tokens: 0 or less."""
        return self.length_penalty.of(tokens) if self.length_penalty else 0.0


def scoring_spec(scoring: Scoring) -> str:
    """The canonical text. `ConfigError` when it is longer than a manifest may state."""
    document: dict[str, object] = {"rewards": [_reward_document(reward) for reward in scoring.rewards]}
    if (penalty := scoring.length_penalty) is not None:
        document["length_penalty"] = {
            "cache_tokens": penalty.cache_tokens,
            "max_tokens": penalty.max_tokens,
            "weight": float(penalty.weight),
        }
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    if len(text) > limits.MAX_SCORING_CHARS:
        raise ConfigError(
            f"the scorers' description has {len(text)} characters, more than {limits.MAX_SCORING_CHARS}",
            remedy="Use a shorter pattern or JSON schema, or fewer scorers.",
        )
    return text


def scorer_names(scoring: Scoring) -> tuple[str, ...]:
    """A name of each scorer: its own or its function's; the second of a name is `NAME 2`."""
    names: list[str] = []
    for reward in scoring.rewards:
        name = str(reward.option("function")) if reward.scorer == "function" else reward.scorer
        same = sum(known.partition(" ")[0] == name for known in names)
        names.append(f"{name} {same + 1}" if same else name)
    return tuple(names)


def parse_spec(text: str) -> Scoring:
    """Read the text of a manifest. `RemoteProtocolError` unless it is canonical and every value is in its range."""
    if len(text) > limits.MAX_SCORING_CHARS:
        raise RemoteProtocolError(f"a scoring spec has {len(text)} characters")
    try:
        document = json.loads(text)
        _require_keys(document, required={"rewards"}, optional={"length_penalty"})
        rewards = tuple(_reward(entry) for entry in _list(document["rewards"]))
        penalty = document.get("length_penalty")
        scoring = Scoring(rewards=rewards, length_penalty=None if penalty is None else _penalty(penalty))
        canonical = scoring_spec(scoring)
    except (ConfigError, ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"a scoring spec is unusable: {str(error)[:200]}") from error
    if canonical != text:
        raise RemoteProtocolError("a scoring spec is not in canonical form")
    return scoring


def _reward_document(reward: Reward) -> dict[str, OptionValue]:
    known = SCORER_OPTIONS[reward.scorer]
    document: dict[str, OptionValue] = {"scorer": reward.scorer, "weight": float(reward.weight)}
    for name, value in reward.options.items():
        default = known[name].default
        typed = float(value) if isinstance(default, float) else value
        if typed != default:
            document[name] = typed
    return document


def _reward(entry: object) -> Reward:
    if not isinstance(entry, dict):
        raise ValueError("a reward is not an object")  # noqa: TRY004  # one kind of error for malformed JSON
    scorer, weight = entry.pop("scorer", None), entry.pop("weight", None)
    if not isinstance(scorer, str) or not isinstance(weight, float):
        raise ValueError("a reward needs a scorer and a weight")  # noqa: TRY004
    return Reward(scorer=scorer, weight=weight, options=entry)


def _penalty(entry: object) -> LengthPenalty:
    _require_keys(entry, required={"cache_tokens", "max_tokens", "weight"}, optional=set())
    assert isinstance(entry, dict)
    for name, kind in (("cache_tokens", int), ("max_tokens", int), ("weight", float)):
        if type(entry[name]) is not kind:
            raise ValueError(f"length_penalty: {name} has the wrong type")
    return LengthPenalty(**entry)


def _list(value: object) -> list[object]:
    if not isinstance(value, list) or len(value) > MAX_REWARDS:
        raise ValueError("rewards is no list, or too long")
    return value


def _require_keys(value: object, *, required: set[str], optional: set[str]) -> None:
    if not isinstance(value, dict) or not required <= set(value) <= required | optional:
        raise ValueError("a key is missing or unknown")
