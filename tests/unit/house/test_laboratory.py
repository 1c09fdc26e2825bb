"""`p2prl-lab`: a distribution beside the product, which has none of it and runs without it."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.unit.house.checkout import copy_checkout
from tests.unit.house.source_tree import LABORATORY, ROOT, python_files

PRODUCT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PROJECT = tomllib.loads((ROOT / LABORATORY / "pyproject.toml").read_text())["project"]

WITHOUT_LABORATORY = """
import importlib.machinery, importlib.metadata, sys

class Absent:
    # what a volunteer's machine has
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "p2prl_lab":
            raise ModuleNotFoundError(name)

found = importlib.metadata.Distribution.discover
importlib.metadata.Distribution.discover = lambda **context: (
    each for each in found(**context) if each.name != "p2prl-lab"
)
sys.meta_path.insert(0, Absent)
sys.argv = ["p2prl", *sys.argv[1:]]
from p2prl.cli import main
main()
"""


def run_without_laboratory(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program, where only the product is installed."""
    program = [sys.executable, "-c", WITHOUT_LABORATORY, *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Names of the files in a wheel of the product and in one of the laboratory."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheels")
    copy_checkout(source)
    for folder in (source, source / LABORATORY):
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(folder)]
        done = subprocess.run(build, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return {
        path.name.partition("-")[0]: {name for name in zipfile.ZipFile(path).namelist() if ".dist-info/" not in name}
        for path in out.glob("*.whl")
    }


def test_each_wheel_holds_its_own_modules_and_nothing_of_the_other(wheels: dict[str, set[str]]) -> None:
    modules = {str(path.relative_to(ROOT / LABORATORY)) for path in python_files(LABORATORY)}
    assert len(modules) > 150
    assert wheels["p2prl_lab"] == {*modules, "p2prl_lab/py.typed"}
    assert {name.partition("/")[0] for name in wheels["p2prl"]} == {"p2prl"}
    assert sum(name.startswith("p2prl/testing/") for name in wheels["p2prl"]) == len(
        list((ROOT / "p2prl" / "testing").glob("*.py"))
    )


def test_versions_are_in_step() -> None:
    assert PROJECT["version"] == PRODUCT["version"]
    assert f"p2prl=={PRODUCT['version']}" in PROJECT["dependencies"]


@pytest.mark.parametrize("name", sorted(PROJECT["entry-points"]["p2prl.benchmarks"]))
def test_a_benchmark_of_the_laboratory_says_how_to_install_it(name: str) -> None:
    done = run_without_laboratory("bench", name, "--json")
    assert done.returncode == 3
    assert done.stdout == ""
    first, second = done.stderr.splitlines()
    assert first == f"p2prl: there is no benchmark '{name}' here; the laboratory has more of them"
    assert second.strip() == "Install it, in a clone: pip install -c constraints.txt ./lab"


def test_the_product_alone_lists_and_explains_its_own_benchmarks() -> None:
    shown = run_without_laboratory("bench", "--help")
    assert shown.returncode == 0, shown.stderr
    assert [name for name in ("machine", "engine", "step", "publish") if name not in shown.stdout] == []
    assert "staleness" not in shown.stdout
    assert run_without_laboratory("bench", "machine", "--help").returncode == 0


def test_help_of_the_benchmarks_needs_no_torch() -> None:
    program = (
        "import sys; sys.argv = ['p2prl', 'bench', '--help']\nfrom p2prl.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "assert 'p2prl_lab' in sys.modules\n"
        "heavy = {'torch', 'transformers', 'numpy', 'hivemind', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "staleness" in done.stdout


def test_every_program_is_in_the_readme() -> None:
    """What has no reader has no place in the laboratory."""
    text = (ROOT / LABORATORY / "README.md").read_text()
    package = ROOT / LABORATORY / "p2prl_lab"
    programs = {
        ".".join(("p2prl_lab", *path.relative_to(package).with_suffix("").parts)).removesuffix(".__main__")
        for path in python_files(LABORATORY)
        if any(isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'" for node in _top(path))
    }
    assert len(programs) > 25
    assert sorted(name for name in programs if f"`python -m {name}" not in text) == []
    folders = sorted(path.name for path in package.rglob("*") if (path / "__init__.py").exists())
    assert [name for name in folders if f"`{name}" not in text and f"/{name}`" not in text] == []
    assert [name for name in PROJECT["entry-points"]["p2prl.benchmarks"] if f"`p2prl bench {name}`" not in text] == []


def _top(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body
