"""The wheel and the sdist hold what the tree holds: root folders are grafted, which is easy to get half right."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts.check_wheel import faults
from tests.unit.house.checkout import copy_checkout
from tests.unit.house.source_tree import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]


def packages_in_tree() -> set[str]:
    """Every folder with an `__init__.py` below the import root, seen through the links."""
    roots = {"p2prl": ROOT / "p2prl"} | {
        f"p2prl.{link.name}": link for link in (ROOT / "p2prl").iterdir() if link.is_symlink()
    }
    return {
        ".".join((name, *init.parent.relative_to(folder).parts))
        for name, folder in roots.items()
        for init in folder.rglob("__init__.py")
    }


def test_every_package_of_the_tree_is_listed() -> None:
    assert set(SETUPTOOLS["packages"]) == packages_in_tree()


def test_links_and_mapping_name_the_same_folders() -> None:
    mapped = {name: folder for name, folder in SETUPTOOLS["package-dir"].items() if name != "p2prl"}
    links = {f"p2prl.{path.name}": path for path in (ROOT / "p2prl").iterdir() if path.is_symlink()}
    assert set(mapped) == set(links)
    for name, link in links.items():
        assert link.readlink() == Path("..") / mapped[name]
        assert link.resolve() == ROOT / mapped[name]


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel and an sdist, built from a copy so that the tree stays clean."""
    source = tmp_path_factory.mktemp("source")
    out = tmp_path_factory.mktemp("dist")
    copy_checkout(source)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_wheel_holds_every_module_and_nothing_else_at_top(distributions: Path) -> None:
    wheel = next(distributions.glob("*.whl"))
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = [ROOT / "p2prl", *(path for path in (ROOT / "p2prl").iterdir() if (path / "__init__.py").exists())]
    expected = {
        "/".join(("p2prl", *([folder.name] if folder.name != "p2prl" else []), module.name))
        for folder in folders
        for module in folder.glob("*.py")
    }
    assert expected <= names
    top = {name.split("/")[0] for name in names}
    assert top == {"p2prl", next(name for name in top if name.endswith(".dist-info"))}
    assert "p2prl/py.typed" in names
    assert any(re.fullmatch(r"p2prl/scoreboard/web/templates/.+\.html", name) for name in names)
    assert faults(wheel, ROOT) == []
    checked = subprocess.run(
        [sys.executable, "-m", "check_wheel_contents", "--config", str(ROOT / "pyproject.toml"), str(wheel)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


REQUIRES_TORCH = "Requires-Dist: torch==2.13.0\n"


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"p2prl_lab/fuzz.py": ""}, "p2prl_lab/fuzz.py is not of the product"),
        ({"p2prl/net/test_ports.py": ""}, "p2prl/net/test_ports.py is a test"),
        ({"licenses/LICENSE": None}, "the license is missing"),
        ({"entry_points.txt": ""}, "it brings no program p2prl"),
        ({"METADATA": ("Name: p2prl\n", "Name: p2prl-next\n")}, "its name is p2prl-next, and the project's p2prl"),
        ({"METADATA": ("\nVersion: ", "\nVersion: 9")}, "its version is 9"),
        ({"METADATA": ("\nVersion: ", "\nVersion: x")}, "metadata: "),
        ({"METADATA": ("Provides-Extra: sensors\n", "")}, "its extras are "),
        ({"METADATA": (REQUIRES_TORCH, "")}, "its dependencies are not the project's"),
        ({"METADATA": ("torch==2.13.0\n", "torch @ https://a.example/t.whl\n")}, "torch comes from an address"),
        ({"METADATA": ("text/markdown", "text/plain")}, "its description is no Markdown"),
    ],
)
def test_a_wheel_that_an_index_or_a_user_would_refuse(
    distributions: Path, tmp_path: Path, changed: dict[str, tuple[str, str] | str | None], fault: str
) -> None:
    wheel = next(distributions.glob("*.whl"))
    ((path, change),) = changed.items()
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(tmp_path / wheel.name, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            content = source.read(name)
            if not name.endswith(f".dist-info/{path}"):
                target.writestr(name, content)
            elif isinstance(change, tuple):
                assert change[0].encode() in content
                target.writestr(name, content.replace(change[0].encode(), change[1].encode()))
            elif change is not None:
                target.writestr(name, change)
        if path.startswith("p2prl"):
            target.writestr(path, "")
    found = faults(tmp_path / wheel.name, ROOT)
    assert any(each.startswith(fault) for each in found), found


def test_sdist_can_make_the_wheel_again(distributions: Path) -> None:
    sdist = next(distributions.glob("*.tar.gz"))
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"protocol/kinds.py", "client/next_action.py", "validator/service.py", "pyproject.toml", "LICENSE"} <= names


ATTACKS = "lab/p2prl_lab/testing/hostile_"
"""Hostile answers, and a scorer that executes them in the sandbox: texts, none of which p2prl runs itself."""


def test_no_sentence_of_a_dangerous_loader() -> None:
    """Strangers' bytes never reach a loader that can run them: no module even names one."""
    forbidden = re.compile(
        r"\bpickle\b\.|torch\.load\(|yaml\.load\(|(?<![\w.])(eval|exec)\(|trust_remote_code\s*=\s*True"
    )
    offenders = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("p2prl", "client", "validator", "protocol", "lab", "scripts")
        for path in (ROOT / folder).rglob("*.py")
        if not path.relative_to(ROOT).as_posix().startswith(ATTACKS)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(line)
    ]
    assert offenders == []
