"""The public API fits one page: it names what the examples import, and each name is there, documented."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.house.source_tree import ROOT

PAGE = (ROOT / "docs" / "api.md").read_text()


def public() -> dict[str, list[str]]:
    """Names of each module in the table, in the page's order."""
    rows = re.findall(r"^\| (?:\*\*\w+\*\*: )?`(p2prl[\w.]+)` \| (.+) \|$", PAGE, re.MULTILINE)
    return {module: re.findall(r"`(\w+)`", names) for module, names in rows}


def imported_by_examples() -> Iterator[tuple[str, str, str]]:
    """(where, module, name) of each import from p2prl in an example package or in a page's Python."""
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "examples").rglob("*.py")}
    for page in (ROOT / "docs").glob("*.md"):
        for number, block in enumerate(
            re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        ):
            sources[f"{page.name}, block {number}"] = block
    for where, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "p2prl":
                yield from ((where, str(node.module), alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                assert not any(alias.name.split(".")[0] == "p2prl" for alias in node.names), where


def test_examples_and_pages_import_public_names_alone() -> None:
    listed = public()
    found = list(imported_by_examples())
    assert len({name for _, _, name in found}) > 40, "the examples were found"
    beyond = sorted(f"{where}: {module}.{name}" for where, module, name in found if name not in listed.get(module, ()))
    assert beyond == []


def test_the_page_fits_a_page() -> None:
    assert len(PAGE.splitlines()) <= 60
    for module, names in public().items():
        assert names == sorted(set(names), key=lambda name: (not name.isupper(), name)), module


def has_docstring(module: str, name: str) -> bool:
    """Whether a class, function or constant that `module` defines or passes on has a docstring."""
    path = importlib.import_module(module).__file__
    assert path is not None
    body = ast.parse(Path(path).read_text(encoding="utf-8")).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return bool(ast.get_docstring(node))
        if isinstance(node, ast.ImportFrom) and name in (alias.asname or alias.name for alias in node.names):
            return has_docstring(str(node.module), name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if name in (getattr(target, "id", None) for target in targets):
            value = following.value if isinstance(following, ast.Expr) else None
            return isinstance(value, ast.Constant) and isinstance(value.value, str)
    raise AssertionError(f"{module} has no {name}")


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in public().items() for name in names])
def test_each_public_name_is_there_and_documented(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(module), name)
    assert has_docstring(module, name)


def test_the_losses_of_another_trainer_are_those_of_the_package() -> None:
    algorithms = importlib.import_module("p2prl.algorithms")
    assert public()["p2prl.algorithms"] == algorithms.__all__


def test_importing_the_api_touches_no_file_and_starts_no_thread(tmp_path: Path) -> None:
    program = (
        "import importlib, os, threading\n"
        f"for name in {list(public())!r}:\n"
        "    importlib.import_module(name)\n"
        "assert threading.active_count() == 1\n"
        "assert not os.listdir(os.environ['HOME'])\n"
    )
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-B", "-c", program]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
