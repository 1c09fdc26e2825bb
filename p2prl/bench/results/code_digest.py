"""A digest of the code behind a result, so that no rerun takes up a figure that other code has made.

Comments, docstrings and layout do not count; everything that can move a number does.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from pathlib import Path

from p2prl.errors import LocalProtocolError

_COUNTED = ("p2prl.algorithms.", "p2prl.bench.", "p2prl.tasks.")
_OPEN_LISTS = frozenset(
    {
        "p2prl.algorithms.registry",
        "p2prl.tasks.registry",
        "p2prl.bench.staleness.methods",
        "p2prl.bench.staleness.rejected_losses",
    }
)
"""Lists of every method and task. A new entry changes no other: what they decide goes into the digest as text."""


def code_digest(*modules: str, decided: str = "") -> str:
    """Sixteen hex digits of these modules, of all they import in turn, and of the text `decided`."""
    digest = hashlib.sha256(decided.encode())
    for name in sorted(_closure(frozenset(modules))):
        digest.update(b"\0" + name.encode() + b"\0" + _program(name))
    return digest.hexdigest()[:16]


@functools.cache
def _closure(modules: frozenset[str]) -> frozenset[str]:
    known: set[str] = set()
    waiting = set(modules)
    while waiting:
        name = waiting.pop()
        known.add(name)
        waiting |= {found for found in _imports(name) if found.startswith(_COUNTED)} - known - _OPEN_LISTS
    return frozenset(known)


def _imports(name: str) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(_source(name))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # `from p2prl.tasks import chain4` names a package and a module of it.
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full for full in inside if full.startswith(_COUNTED) and _file(full) is not None}
            found.add(node.module)
    return found


@functools.cache
def _program(name: str) -> bytes:
    tree = ast.parse(_source(name))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [  # type: ignore[attr-defined]
                part for part in body if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant))
            ]
    return ast.dump(tree).encode()


@functools.cache
def _source(name: str) -> str:
    path = _file(name)
    if path is None:
        raise LocalProtocolError(f"{name} has no source to take a digest of")
    return path.read_text(encoding="utf-8")


def _file(name: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # a name inside a module, not a module
        return None
    return Path(spec.origin) if spec is not None and spec.origin is not None else None
