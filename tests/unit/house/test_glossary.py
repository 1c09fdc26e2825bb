"""`docs/glossary.md` names modules and definitions that exist, and each term once."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.unit.house.source_tree import ROOT, parsed

TEXT = (ROOT / "docs/glossary.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| term ")
]
PATH = re.compile(r"`((?:p2prl|protocol|client|validator|lab|scripts)/[\w/.]+\.py)`")


def definitions(path: Path) -> set[str]:
    """Names that a module defines at its top level."""
    names = set()
    for node in parsed(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def test_terms_are_unique_and_defined_in_a_sentence() -> None:
    terms = [row[0] for row in ROWS]
    assert len(terms) > 80
    assert len(set(terms)) == len(terms)
    assert all(len(row) == 3 and row[1].endswith(".") for row in ROWS)


@pytest.mark.parametrize("path", sorted(set(PATH.findall(TEXT))))
def test_module_exists(path: str) -> None:
    assert (ROOT / path).is_file()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_code_name_is_defined_there(row: list[str]) -> None:
    path, *names = re.findall(r"`([^`]+)`", row[2])
    assert set(names) <= definitions(ROOT / path)
