"""Texts of `p2prl init --scorer` and `--length-penalty`, read into a scoring.

`number`, `number:tolerance=1e-6,column=target`, `regex:PATTERN`, `0.1*format:PATTERN`, `rewards.py:accuracy`. A pattern
is the rest of the text, so it needs no quoting beyond the shell's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from p2prl.errors import ConfigError
from p2prl.tasks.scorers.length_penalty import LengthPenalty
from p2prl.tasks.scorers.spec import Reward, Scoring
from p2prl.tasks.scorers.spec_options import SCORER_OPTIONS, OptionValue, unknown_option, unknown_scorer

_WEIGHT = re.compile(r"([+-]?[0-9][0-9.]*(?:[eE][+-]?[0-9]+)?)\*(.+)", re.DOTALL)
_FUNCTION = re.compile(r"(.+\.py)(?::(.*))?", re.DOTALL)
_PENALTY = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")

_YES_NO = {"yes": True, "true": True, "no": False, "false": False}


def read_file(path: Path) -> str:
    """The text of a file that an option names. `ConfigError` when it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}", remedy="Name a UTF-8 text file that this user may read."
        ) from error


def scoring_from_options(
    scorers: Sequence[str], length_penalty: str = "", *, read_text: Callable[[Path], str] = read_file
) -> tuple[Scoring, Path | None]:
    """The scoring, and the Python file of the researcher's own functions if one is named.

    `ConfigError` for a text that is no scorer, an option it does not have, or functions in more than one file.
    """
    rewards, files = [], []
    for text in scorers:
        reward, code = read_scorer(text, read_text=read_text)
        rewards.append(reward)
        if code is not None and code not in files:
            files.append(code)
    if len(files) > 1:
        raise ConfigError(
            f"scorers come from {len(files)} Python files: {', '.join(map(str, files[:4]))}",
            remedy="Put the functions of one data set into one file, which volunteers' validators can read as a whole.",
        )
    penalty = read_length_penalty(length_penalty) if length_penalty else None
    return Scoring(rewards=tuple(rewards), length_penalty=penalty), files[0] if files else None


def read_scorer(text: str, *, read_text: Callable[[Path], str] = read_file) -> tuple[Reward, Path | None]:
    """One scorer, and its Python file if it is a function."""
    weight, text = _split_weight(text)
    if (match := _FUNCTION.fullmatch(text)) and text.partition(":")[0] not in SCORER_OPTIONS:
        if not match[2]:
            raise ConfigError(
                f"{match[1]} names no function", remedy=f"Write {match[1]}:FUNCTION, such as {match[1]}:accuracy."
            )
        return Reward(scorer="function", weight=weight, options={"function": match[2]}), Path(match[1])
    name, _, rest = text.partition(":")
    if name not in SCORER_OPTIONS or name == "function":
        raise unknown_scorer(name)
    options = _pattern_options(name, rest) if "pattern" in SCORER_OPTIONS[name] else _options(name, rest)
    if "schema" in options:
        options["schema"] = _schema(Path(str(options["schema"])), read_text)
    return Reward(scorer=name, weight=weight, options=options), None


def read_length_penalty(text: str) -> LengthPenalty:
    """`LIMIT:MARGIN` in tokens, with a weight as `0.5*LIMIT:MARGIN`: DAPO's soft overlong penalty."""
    weight, rest = _split_weight(text)
    match = _PENALTY.fullmatch(rest)
    if match is None:
        raise ConfigError(
            f"the length penalty {text[:64]!r} cannot be read",
            remedy="Write LIMIT:MARGIN in tokens, such as 512:128: no penalty up to 384 tokens, -1 from 512 on.",
        )
    return LengthPenalty(max_tokens=int(match[1]), cache_tokens=int(match[2]), weight=weight)


def _split_weight(text: str) -> tuple[float, str]:
    match = _WEIGHT.fullmatch(text)
    if match is None:
        return 1.0, text
    try:
        return float(match[1]), match[2]
    except ValueError:
        raise ConfigError(
            f"the weight {match[1][:32]!r} is no number", remedy="Write a weight such as 0.1*format:PATTERN."
        ) from None


def _options(scorer: str, text: str) -> dict[str, OptionValue]:
    options: dict[str, OptionValue] = {}
    for part in text.split(",") if text else ():
        name, equals, value = part.partition("=")
        if name not in SCORER_OPTIONS[scorer]:
            raise unknown_option(scorer, name)
        if not equals or name in options:
            raise ConfigError(
                f"{scorer}: {part[:64]!r} {'is given twice' if equals else 'has no value'}",
                remedy=f"Write {scorer}:{name}=VALUE once.",
            )
        options[name] = _value(scorer, name, value)
    return options


def _pattern_options(scorer: str, text: str) -> dict[str, OptionValue]:
    """`PATTERN`, or `OPTION=VALUE,...,pattern=PATTERN`: what does not begin with an option's name is all pattern."""
    names = "|".join(name for name in SCORER_OPTIONS[scorer] if name != "pattern")
    head = re.match(rf"((?:(?:{names})=[^,]*,)*)pattern=", text)
    if head is None:
        return {"pattern": text} if text else {}
    return {**_options(scorer, head[1].rstrip(",")), "pattern": text[head.end() :]}


def _value(scorer: str, name: str, text: str) -> OptionValue:
    default = SCORER_OPTIONS[scorer][name].default
    if isinstance(default, bool):
        if text.lower() not in _YES_NO:
            raise ConfigError(f"{scorer}: {name} is {text[:64]!r}", remedy=f"Set {name} to yes or no.")
        return _YES_NO[text.lower()]
    if isinstance(default, float):
        try:
            return float(text)
        except ValueError:
            raise ConfigError(
                f"{scorer}: {name} is {text[:64]!r}", remedy=f"Set {name} to a number, such as 1e-6."
            ) from None
    return text


def _schema(path: Path, read_text: Callable[[Path], str]) -> str:
    """A schema file as canonical JSON text, which is what the spec holds."""
    try:
        return json.dumps(json.loads(read_text(path)), sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {str(error)[:200]}", remedy="Write a JSON schema into it.") from error
