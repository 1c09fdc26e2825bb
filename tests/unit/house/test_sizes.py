"""Files, functions, classes and constructors stay small enough to read in one sitting."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator

import pytest

from tests.unit.house.source_tree import ALL_FOLDERS, LABORATORY, PRODUCT_FOLDERS, ROOT, name_of, parsed, python_files

MAX_FILE_LINES = 400
MEDIAN_FILE_LINES = range(110, 181)
"""Below, what is read together lies apart; above, files have a second job."""

MAX_FUNCTION_LINES = 70
MAX_CLASS_LINES = 300
MAX_CONSTRUCTOR_ARGUMENTS = 8
MAX_CLASS_ATTRIBUTES = 12

REASON = "because"
"""A class above a limit says why in its docstring, in a sentence with this word."""


def test_file_lengths() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in python_files(*ALL_FOLDERS)}
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FILE_LINES} == {}
    product = [len(path.read_text().splitlines()) for path in python_files(*PRODUCT_FOLDERS)]
    assert int(statistics.median(product)) in MEDIAN_FILE_LINES


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@pytest.fixture(scope="module")
def findings() -> tuple[dict[str, int], dict[str, str]]:
    """Functions and classes that are too long, and classes above a limit that give no reason, of every file once."""
    too_long: dict[str, int] = {}
    unexplained: dict[str, str] = {}
    for path in python_files(*ALL_FOLDERS):
        is_held = path.relative_to(ROOT).parts[0] in (*PRODUCT_FOLDERS, LABORATORY)
        for node in ast.walk(parsed(path)):
            if not isinstance(node, Definition):
                continue
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > (MAX_CLASS_LINES if isinstance(node, ast.ClassDef) else MAX_FUNCTION_LINES):
                too_long[f"{name_of(path)}:{node.name}"] = lines
            if is_held and isinstance(node, ast.ClassDef) and REASON not in _docstrings(node):
                unexplained[f"{name_of(path)}:{node.name}"] = _excess(node)
    assert len(unexplained) > 100, "most classes are within the limits"
    return too_long, unexplained


def test_function_and_class_lengths(findings: tuple[dict[str, int], dict[str, str]]) -> None:
    assert findings[0] == {}


def test_constructors_and_attributes_above_the_limit_give_a_reason(
    findings: tuple[dict[str, int], dict[str, str]],
) -> None:
    assert {name: excess for name, excess in findings[1].items() if excess} == {}


def _excess(node: ast.ClassDef) -> str:
    """The figures of a class that is above a limit; empty for one within. Fields count as attributes."""
    initializer = _initializer(node)
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign) and not _is_class_variable(part)]
    if initializer is None:
        return f"{len(fields)} fields" if len(fields) > MAX_CLASS_ATTRIBUTES else ""
    arguments = len(initializer.args.args) + len(initializer.args.kwonlyargs) - 1
    attributes = len(set(_assigned(initializer)))
    if arguments > MAX_CONSTRUCTOR_ARGUMENTS or attributes > MAX_CLASS_ATTRIBUTES:
        return f"{arguments} arguments, {attributes} attributes"
    return ""


def _initializer(node: ast.ClassDef) -> ast.FunctionDef | None:
    return next((part for part in node.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)


def _is_class_variable(part: ast.AnnAssign) -> bool:
    return "ClassVar" in ast.unparse(part.annotation)


def _assigned(initializer: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(initializer):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        for target in targets:
            for leaf in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(leaf, ast.Attribute) and isinstance(leaf.value, ast.Name) and leaf.value.id == "self":
                    yield leaf.attr


def _docstrings(node: ast.ClassDef) -> str:
    initializer = _initializer(node)
    return (ast.get_docstring(node) or "") + ((ast.get_docstring(initializer) or "") if initializer else "")
