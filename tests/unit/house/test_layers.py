"""Imports that no linter contract covers: tests are imported by nothing, testing tools by no product module."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file imports, wherever in the file, and the names it takes from packages."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers_of(package: str, folders: tuple[str, ...]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)} imports {name}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in imports_of(path)
        if name == package or name.startswith(f"{package}.")
    ]


def test_nothing_imports_tests() -> None:
    assert importers_of("tests", ("p2prl", "client", "validator", "protocol", "scripts")) == []


def test_product_does_not_import_testing_tools() -> None:
    found = importers_of("p2prl.testing", ("p2prl", "client", "validator", "protocol"))
    assert [line for line in found if not line.startswith("p2prl/testing/")] == []
