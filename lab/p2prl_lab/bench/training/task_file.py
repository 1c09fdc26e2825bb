"""A task from a Python file, through the registry's door: for benchmarks on the machine of the file's owner only.

The file is imported like a package that its owner installed. No run manifest can name one.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

from p2prl.errors import ConfigError
from p2prl.tasks.task_registry import TASKS
from p2prl.tasks.task_spec import TaskSpec

_GUIDE = "See “A task” in docs/extending.md."
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""Part of the names of files."""
_MODULE = "p2prl_task_file"
_MOST_BYTES = 1 << 20
"""A larger file is not a task that somebody wrote."""


def offer_task_file(text: str) -> str:
    """Add the task of `FILE.py` or `FILE.py:NAME` to the registry for this process, and return its name.

    NAME is the file's `TaskSpec`; without it the file must define exactly one. ConfigError with the reason for anything
    else. Results are stored under the digest of the file's bytes, not of other modules that it imports.
    """
    path, name = Path(text), ""
    if not path.exists() and ":" in path.name:
        written, _, name = text.rpartition(":")
        path = Path(written)
    try:
        source = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read the task file {path}: {error.strerror}", remedy="Set --task-file to a Python file."
        ) from error
    if path.suffix != ".py" or len(source) > _MOST_BYTES:
        raise ConfigError(f"{path} is not a Python file of at most 1 MiB", remedy=_GUIDE)
    spec = _choose(path, _imported(path), name)
    if not _NAME.fullmatch(spec.name):
        raise ConfigError(
            f"{path}: {spec.name[:64]!r} is no name for a task", remedy="Use up to 64 letters, digits, - and _."
        )
    TASKS.offer(spec.name, spec, origin=hashlib.sha256(source).hexdigest()[:16])
    return spec.name


def _imported(path: Path) -> ModuleType:
    plan = importlib.util.spec_from_file_location(_MODULE, path)
    if plan is None or plan.loader is None:
        raise ConfigError(f"{path} cannot be imported", remedy=_GUIDE)
    module = importlib.util.module_from_spec(plan)
    sys.modules[_MODULE] = module  # dataclasses look their module up by name
    try:
        plan.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a stranger's file may raise anything at all
        sys.modules.pop(_MODULE, None)
        place = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise ConfigError(
            f"{path}{place} cannot be imported: {type(error).__name__}: {error}", remedy=f"Correct the file. {_GUIDE}"
        ) from error
    return module


def _choose(path: Path, module: ModuleType, name: str) -> TaskSpec:
    if name:
        found = getattr(module, name, None)
        if not isinstance(found, TaskSpec):
            raise ConfigError(f"{path} has no TaskSpec called {name[:64]!r}", remedy=_GUIDE)
        return found
    specs = {key: value for key, value in vars(module).items() if isinstance(value, TaskSpec)}
    if len({id(spec) for spec in specs.values()}) != 1:
        named = f": {', '.join(sorted(specs))}" if specs else ""
        remedy = f"Choose one, such as --task-file {path}:{min(specs)}." if specs else _GUIDE
        raise ConfigError(f"{path} has {len(specs)} TaskSpecs{named}; one is needed", remedy=remedy)
    return next(iter(specs.values()))
