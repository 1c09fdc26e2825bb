"""The source files of this repository as house tests read them."""

from __future__ import annotations

import ast
import functools
import inspect
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT_FOLDERS = ("p2prl", "client", "validator", "protocol")
LABORATORY = "lab"
ALL_FOLDERS = (*PRODUCT_FOLDERS, LABORATORY, "scripts", "tests", "examples")


def python_files(*folders: str) -> Iterator[Path]:
    """Every Python file below these root folders once, whichever link it can be reached through."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(part.is_symlink() for part in path.parents if part.is_relative_to(ROOT)):
                yield path


def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def docstring_of(path: Path) -> str:
    """The docstring of a module, read without the rest of its file."""
    with path.open(encoding="utf-8") as file:
        for token in tokenize.generate_tokens(file.readline):
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                return inspect.cleandoc(ast.literal_eval(token.string)) if token.type == tokenize.STRING else ""
    return ""


@functools.cache
def imports_of(path: Path) -> tuple[str, ...]:
    """Names that a file imports anywhere: at the top, in functions, under TYPE_CHECKING."""
    names: list[str] = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(names)


def name_of(path: Path) -> str:
    """The path as a reader of the repository sees it."""
    return str(path.relative_to(ROOT))
