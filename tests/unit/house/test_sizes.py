"""Files, functions, classes and constructors stay small enough to read in one sitting."""

from __future__ import annotations

import ast
import statistics
from collections.abc import Iterator

from tests.unit.house.source_tree import ALL_FOLDERS, LABORATORY, PRODUCT_FOLDERS, name_of, parsed, python_files

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


def test_function_and_class_lengths() -> None:
    too_long = {
        f"{name_of(path)}:{node.name}": lines
        for path in python_files(*ALL_FOLDERS)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1)
        > (MAX_CLASS_LINES if isinstance(node, ast.ClassDef) else MAX_FUNCTION_LINES)
    }
    assert too_long == {}


def test_constructors_and_attributes_above_the_limit_give_a_reason() -> None:
    unexplained = {
        f"{name_of(path)}:{node.name}": excess
        for path in python_files(*PRODUCT_FOLDERS, LABORATORY)
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef) and (excess := _excess(node)) and REASON not in _docstrings(node)
    }
    assert unexplained == {}


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
