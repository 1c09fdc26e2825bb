"""Options of `p2prl init` that describe data tasks and the mix, read into plans. Needs no torch.

`--data [NAME=]FILE[@WEIGHT]` adds a data task; `--task NAME[@WEIGHT]` a procedural one. Options about one data set are
`[NAME=]VALUE`: with a name they are for that data set, without one for all of them.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from p2prl.errors import ConfigError, MachineError
from p2prl.protocol import limits
from p2prl.protocol.manifests import MAX_TASK_WEIGHT, MIN_TASK_WEIGHT, TaskShare
from p2prl.tasks.data.checked_rows import CheckedRows
from p2prl.tasks.data.data_plan import DataPlan
from p2prl.tasks.data.data_source import open_source, require_files
from p2prl.tasks.data.hub_data import hub_name, is_hub_data
from p2prl.tasks.data.prompt_template import PromptTemplate
from p2prl.tasks.scorers.row_sources import is_generated, source_name
from p2prl.tasks.scorers.scorer_options import scoring_from_options
from p2prl.tasks.scorers.spec import Scoring, scoring_spec
from p2prl.tasks.scorers.spec_options import SCORER_OPTIONS
from p2prl.tasks.wasm.self_test import EnvironmentPlan, plan_environment

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_WEIGHT = re.compile(r"(.+)@([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataOptions:
    """The texts of the options, as typed."""

    data: Sequence[str] = ()
    held_out: Sequence[str] = ()
    """`--eval`."""
    eval_split: float = 0.0
    scorers: Sequence[str] = ()
    length_penalty: str = ""
    prompt_columns: Sequence[str] = ()
    prompts: Sequence[str] = ()
    """`--prompt`."""
    answer_columns: Sequence[str] = ()
    drop_long: bool = False
    drop_conflicts: bool = False


def data_plans(options: DataOptions) -> tuple[DataPlan, ...]:
    """The data tasks of a new run, in the order of their names. `ConfigError` naming the option that is wrong.

    The first row of every file is read, so that a wrong path or column is found before a model is loaded.
    """
    _refuse_without_data(options)
    share = options.eval_split
    if not 0 <= share < 1:
        raise ConfigError(
            f"--eval-split is {share}; it must be from 0 to below 1", remedy="For example: --eval-split 0.02"
        )
    files = _named_files("--data", options.data)
    held_out = _by_name("--eval", options.held_out, files)
    prompts = _by_name("--prompt-column", options.prompt_columns, files)
    templates = _by_name("--prompt", options.prompts, files)
    answers = _by_name("--answer-column", options.answer_columns, files)
    scorers = _by_name("--scorer", options.scorers, files)
    plans = []
    for name, (path, weight) in sorted(files.items()):
        if held_out[name] and len(files) > 1 and not _names_one(options.held_out, name):
            raise ConfigError(
                "--eval does not say whose evaluation it is",
                remedy=f"Name the data set: --eval {name}={held_out[name][0]}",
            )
        if templates[name] and prompts[name]:
            raise ConfigError(
                "--prompt and --prompt-column exclude each other", remedy="Give one of them for a data set."
            )
        require_files(path)  # a mistyped path is named before a scorer that is missing
        scoring, code = _scoring(name, scorers[name], options.length_penalty)
        held = _last(held_out[name])
        plan = DataPlan(
            task=name,
            path=path,
            weight=weight,
            held_out=_source_path("--eval", held) if held else None,
            eval_split=0.0 if held else share,
            prompt_column=_last(prompts[name]),
            prompt_template=PromptTemplate.read(templates[name][-1]) if templates[name] else None,
            answer_column=_last(answers[name]),
            drop_long=options.drop_long,
            drop_conflicts=options.drop_conflicts,
            scoring=scoring_spec(scoring),
            needed_columns=_needed(scoring),
            code=code,
        )
        _read_first_rows(plan)
        plans.append(plan)
    return tuple(plans)


def task_shares(texts: Sequence[str]) -> tuple[TaskShare, ...]:
    """Procedural tasks of a mix: `NAME` or `NAME@WEIGHT` each."""
    shares = [TaskShare(name, weight) for name, weight in (_weighted("--task", text) for text in texts)]
    _refuse_twice("--task", [share.task for share in shares])
    return tuple(shares)


def _refuse_without_data(options: DataOptions) -> None:
    given = {
        "--eval": options.held_out,
        "--eval-split": options.eval_split,
        "--scorer": options.scorers,
        "--length-penalty": options.length_penalty,
        "--prompt-column": options.prompt_columns,
        "--prompt": options.prompts,
        "--answer-column": options.answer_columns,
        "--drop-long": options.drop_long,
        "--drop-conflicts": options.drop_conflicts,
    }
    for option, value in given.items():
        if value and not options.data:
            raise ConfigError(f"{option} is about a data set, and there is none", remedy="Add one: --data FILE")


def environment_plans(texts: Sequence[str]) -> tuple[EnvironmentPlan, ...]:
    """Environments of a new run, `[NAME=]FILE[@WEIGHT]` each. `ConfigError` for a file that cannot be one."""
    return tuple(
        plan_environment(name, weight, _module_file(path))
        for name, (path, weight) in sorted(_named_files("--environment", texts).items())
    )


def _module_file(path: Path) -> bytes:
    """A file's content. Its text may be some times longer than its module."""
    most = 8 * limits.MAX_MODULE_BYTES
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ConfigError(f"--environment {path}: {error.strerror}", remedy="Check the path.") from error
    if len(content) > most:
        raise ConfigError(f"{path} has more than {most:,} bytes", remedy="Give a WebAssembly module, or its text.")
    return content


def _named_files(option: str, texts: Sequence[str]) -> dict[str, tuple[Path, float]]:
    """File and weight of each data set or environment by name."""
    files: dict[str, tuple[Path, float]] = {}
    for text in texts:
        name, rest = _split_name(text)
        file, weight = (rest, 1.0) if not is_generated(rest) and _exists(rest) else _weighted(option, rest)
        path = _source_path(option, file)
        if is_generated(file) or is_hub_data(file):
            name = name or (source_name(file) if is_generated(file) else hub_name(file))[: limits.MAX_NAME_CHARS]
        name = name or _name_from(path)
        if name in files:
            what = "data sets" if option == "--data" else "environments"
            raise ConfigError(
                f"two {what} have the name {name!r}", remedy=f"Name them: {option} NAME=FILE {option} OTHER=FILE"
            )
        files[name] = (path, weight)
    return files


def _split_name(text: str) -> tuple[str, str]:
    """The name before `=` if there is one; a file that exists under the whole text has none."""
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name) or (not is_generated(rest) and _exists(text)):
        return "", text
    return name, rest


def _exists(text: str) -> bool:
    """Whether a file has this name; none has a name that is too long, or one in the home of an unknown user."""
    try:
        return Path(text).expanduser().exists()
    except (OSError, RuntimeError):
        return False


def _source_path(option: str, text: str) -> Path:
    """The path of a file, or a generated source in its place. `ConfigError` when no file can have it."""
    if is_generated(text) or is_hub_data(text):
        return Path(text)
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:  # a name that is too long, a closed folder, an unknown user's home
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        raise ConfigError(f"{option} {text[:60]!r}: {reason}", remedy="Check the path.") from error
    return path


def _name_from(path: Path) -> str:
    """A data set's name from that of its file."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip(".-_")[: limits.MAX_NAME_CHARS]
    if not name:
        raise ConfigError(f"the file {path} gives no name", remedy=f"Name it: NAME={path}")
    return name


def _weighted(option: str, text: str) -> tuple[str, float]:
    match = _WEIGHT.fullmatch(text)
    if match is not None and MIN_TASK_WEIGHT <= float(match[2]) <= MAX_TASK_WEIGHT:
        return match[1], float(match[2])
    name, _, _ = text.rpartition("@")
    if match is not None or (option != "--task" and name and _exists(name)):
        raise ConfigError(
            f"{option} {text[-60:]!r}: the weight must be from {MIN_TASK_WEIGHT:g} to {MAX_TASK_WEIGHT:g}",
            remedy=f"For example: {option} {name}@2.5",
        )
    return text, 1.0


def _by_name(option: str, texts: Sequence[str], files: Mapping[str, object]) -> dict[str, list[str]]:
    """Values of an option for each data set: those with its name, else those without any."""
    named: dict[str, list[str]] = {name: [] for name in files}
    plain: list[str] = []
    for text in texts:
        name, equals, rest = text.partition("=")
        if equals and name in files:
            named[name].append(rest)
        elif equals and _NAME.fullmatch(name) and _is_value(option, rest) and not _exists(text):
            raise ConfigError(
                f"{option} {text[:60]!r}: no data set has the name {name!r}",
                remedy=f"For example: {option} {next(iter(files))}={rest}",
            )
        else:
            plain.append(text)
    if any("" in values for values in (*named.values(), plain)):
        raise ConfigError(f"{option} has no value", remedy=f"For example: {option} VALUE, or {option} NAME=VALUE")
    return {name: values or plain for name, values in named.items()}


def _is_value(option: str, text: str) -> bool:
    """Whether a text is what an option takes without a name: then what stands before its `=` was meant as one."""
    if option == "--scorer":
        return text.rpartition("*")[2].partition(":")[0] in SCORER_OPTIONS or ".py:" in text
    return option == "--eval" and (is_generated(text) or is_hub_data(text) or _exists(text))


def _names_one(texts: Sequence[str], name: str) -> bool:
    return any(text.startswith(f"{name}=") for text in texts)


def _last(values: Sequence[str]) -> str:
    return values[-1] if values else ""


def _refuse_twice(option: str, names: Sequence[str]) -> None:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{option} names {twice!r} twice", remedy=f"Give it once, with a weight: {option} {twice}@2")


def _scoring(name: str, texts: Sequence[str], length_penalty: str) -> tuple[Scoring, bytes | None]:
    """A data set's scoring, and the file of the researcher's functions."""
    if not texts:
        raise ConfigError(
            f"the data set {name!r} has no scorer",
            remedy="Choose one: --scorer number, exact, choice, FILE.py:FUNCTION … (docs/cli.md).",
        )
    scoring, path = scoring_from_options(texts, length_penalty)
    if path is None:
        return scoring, None
    functions = {str(reward.option("function")) for reward in scoring.rewards if reward.scorer == "function"}
    return scoring, read_code(_source_path("--scorer", str(path)), functions)


def read_code(path: Path, functions: set[str]) -> bytes:
    """A scorer file's bytes, unchanged. `ConfigError` unless it is Python that defines `functions`. Runs nothing."""
    try:
        code = path.read_bytes()
        tree = ast.parse(code, filename=str(path))
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}", remedy="Check the path of --scorer.") from error
    except OSError as error:
        raise MachineError(f"cannot read {path}: {error.strerror}", remedy="Check its permissions.") from error
    except SyntaxError as error:
        place = path if error.lineno is None else f"{path}, line {error.lineno}"
        raise ConfigError(f"{place}: {error.msg}", remedy="Correct the scorer's file.") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not Python: {error}", remedy="Give a Python file.") from error
    if not 0 < len(code) <= limits.MAX_SCORER_CODE_BYTES:
        raise ConfigError(
            f"{path} has {len(code):,} bytes, outside 1..{limits.MAX_SCORER_CODE_BYTES:,}",
            remedy="Keep the scorer in one small file; data belongs into columns.",
        )
    statements = list(_top_level(tree))
    defined = [node.name for node in statements if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    names = {*defined, *_assigned(statements)}
    for function in sorted(functions - names):
        close = difflib.get_close_matches(function, sorted(names), n=1)
        there = f"It defines {', '.join(defined[:8])}." if defined else "It defines none."
        raise ConfigError(
            f"{path} defines no function {function!r}",
            remedy=f"Did you mean {path}:{close[0]}?" if close else there,
        )
    return code


def _top_level(node: ast.AST) -> Iterator[ast.AST]:
    """Statements that run when a module is imported, those below `if` and `try` too; none inside functions."""
    for inner in ast.iter_child_nodes(node):
        yield inner
        if isinstance(inner, ast.If | ast.Try | ast.ExceptHandler | ast.With):
            yield from _top_level(inner)


def _assigned(statements: Sequence[ast.AST]) -> list[str]:
    """Names that a module assigns or imports at its top: a scorer may be one of those too."""
    names: list[str] = []
    for node in statements:
        if isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.ImportFrom | ast.Import):
            names += [alias.asname or alias.name for alias in node.names]
    return names


def _needed(scoring: Scoring) -> frozenset[str]:
    """Columns that the scorers compare with."""
    used = [reward for reward in scoring.rewards if "column" in SCORER_OPTIONS[reward.scorer]]
    return frozenset(column for reward in used if (column := str(reward.option("column"))))


def _read_first_rows(plan: DataPlan) -> None:
    """`ConfigError` for the first faults of a data set's files that its first rows show."""
    for path in (plan.path, plan.held_out):
        if path is not None:
            next(iter(CheckedRows(open_source(path), plan)), None)
