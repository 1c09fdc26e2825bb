"""Names that a run's files may have. Pure."""

from __future__ import annotations

import re

RUN_FILE_NAMES = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "golden.json",
    }
)
"""Files that a run may ship beside its modules. All are data; none may hold code or templates that a volunteer would
execute."""

_MODULE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\.wasm", re.ASCII)
"""No folder, no hidden file, and the same bytes on every disk."""


def module_name(task: str) -> str:
    """The run file with the environment of a task, a WebAssembly module."""
    return f"{task}.wasm"


def task_of_module(name: str) -> str:
    """The task whose module has this name; empty for a name that no module can have."""
    found = _MODULE.fullmatch(name)
    return found[1] if found else ""
