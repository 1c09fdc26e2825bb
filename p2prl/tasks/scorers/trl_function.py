"""A researcher's own reward function in TRL's shape: `f(prompts, completions, **columns) -> list[float]`.

Called as `GRPOTrainer` calls it, with keyword arguments and lists, here of one element: `prompts` and `completions` are
texts, or lists of messages when the row's prompt is a list of messages. The file is the researcher's program: it runs
in the sandbox of the learner and of validators whose owner agreed, nowhere else.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from p2prl.errors import ConfigError
from p2prl.tasks.data.packed_data import Row

_MODULE = "p2prl_scorer_file"
_GIVEN = ("prompts", "completions")
_NOT_COLUMNS = ("prompt", "rendered")
_SANDBOX_REMEDY = (
    "The sandbox has refused it, though `python FILE` may work: a scorer may read installed packages and its own file,"
    " and nothing else. Put what it needs into the file."
)
_ABSENT = ("completion_ids", "trainer_state", "log_extra", "log_metric", "environments")


class TrlFunction:
    """A row scorer that calls the function once per completion."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        """`ConfigError` for an async function, or one with positional-only or trainer-only required parameters."""
        self._function, self._name = function, name
        self._parameters = _parameters(function, name)
        self._any_keyword = any(p.kind is p.VAR_KEYWORD for p in self._parameters.values())

    def score(self, row: Row, completion: str, finished: bool) -> float | None:
        """None stays None, as TRL leaves it out of the sum. Raises what the function raises."""
        results = self._function(**self.arguments(row, completion, finished))
        try:
            values = [*results]
        except TypeError:
            raise TypeError(
                f"{self._name} returned {type(results).__name__}, not a list of one number per completion"
            ) from None
        if len(values) != 1:
            raise TypeError(f"{self._name} returned {len(values)} values for 1 completion")
        (value,) = values
        if value is None:
            return None
        try:
            return float(value)
        except (TypeError, ValueError):
            raise TypeError(f"{self._name} returned {[value]!r:.80}, not a list of one number") from None

    def arguments(self, row: Row, completion: str, finished: bool) -> Mapping[str, object]:
        """Keyword arguments for one completion: what TRL passes and `truncated`, without what the function leaves out.

        `truncated` has whether the length limit cut the completion off, unless the data has a column of that name.
        """
        prompt = row.get("prompt")
        chat = isinstance(prompt, list)
        given = {
            "truncated": [not finished],
            **{name: [value] for name, value in row.items() if name not in _NOT_COLUMNS},
            "prompts": [prompt],
            "completions": [[{"role": "assistant", "content": completion}] if chat else completion],
        }
        missing = [name for name, p in self._parameters.items() if _required(p) and name not in given]
        if missing:
            columns = ", ".join(sorted(name for name in row if name not in _NOT_COLUMNS))
            raise TypeError(f"{self._name} needs {missing[0]!r}, but the data set has only the columns: {columns}")
        return {name: value for name, value in given.items() if self._any_keyword or name in self._parameters}


def load_function(path: Path, name: str) -> TrlFunction:
    """Run the researcher's file and take its function. `ConfigError` when it fails or has no such function."""
    # The loader is named because a validator's download has no name that ends in .py.
    loader = SourceFileLoader(_MODULE, str(path))
    spec = importlib.util.spec_from_loader(_MODULE, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses and typing look their module up
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a researcher's file may raise anything
        raise ConfigError(
            f"the file with {name!r} cannot be loaded: {type(error).__name__}: {str(error)[:200]}",
            remedy=_SANDBOX_REMEDY
            if isinstance(error, OSError)
            else "Run `python FILE` and repair it; it must need no network and no file beside it.",
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        functions = [
            key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")
        ]
        raise ConfigError(
            f"{path.name} has no function {name!r}", remedy=f"It has: {', '.join(functions[:16]) or 'no function'}."
        )
    return TrlFunction(function, name)


def _parameters(function: Callable[..., Any], name: str) -> Mapping[str, inspect.Parameter]:
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        raise ConfigError(
            f"{name} is an async function", remedy="Write it with `def`: the sandbox has no network to wait for."
        )
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        if parameter.name in _ABSENT and _required(parameter):
            raise ConfigError(
                f"{name} needs {parameter.name!r}, which exists only inside TRL's trainer",
                remedy=f"Remove {parameter.name!r}, or take it from **kwargs if it is there.",
            )
        if parameter.kind is parameter.POSITIONAL_ONLY and _required(parameter):
            raise ConfigError(
                f"{name} takes {parameter.name!r} by position only", remedy="Remove the `/` from its parameters."
            )
    if "completions" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise ConfigError(
            f"{name} does not take completions",
            remedy="Write it as in TRL: def f(completions, answer, **kwargs) -> list[float].",
        )
    return parameters


def _required(parameter: inspect.Parameter) -> bool:
    variable = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    return parameter.default is parameter.empty and not variable
