"""`p2prl-algorithms`: the losses alone, built from the same tree, in a process that has torch and nothing else."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from p2prl.algorithms import LOSSES
from tests.unit.house.checkout import copy_checkout
from tests.unit.house.source_tree import ROOT

LIGHT = [ROOT / "p2prl" / name for name in ("__init__.py", "errors.py", "exit_codes.py", "plugins.py")]
ALGORITHMS = sorted((ROOT / "p2prl" / "algorithms").glob("*.py"))
PROJECT = ROOT / "packaging" / "p2prl-algorithms"

TORCH_AND_ITS_OWN = (
    *("torch", "torchgen", "functorch", "numpy", "typing_extensions", "sympy", "mpmath", "networkx"),
    *("jinja2", "markupsafe", "fsspec", "filelock"),
)

BARE_PROCESS = """
import importlib.machinery, sys
allowed = set(sys.stdlib_module_names) | set(%(allowed)r) | {"p2prl"}
class InstalledHere:
    # what a machine with torch alone has
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in allowed or name.startswith("_sysconfigdata"):
            return importlib.machinery.PathFinder.find_spec(name, path, target)
        return None
sys.meta_path[:] = [InstalledHere if f is importlib.machinery.PathFinder else f for f in sys.meta_path]
sys.path[:0] = [%(wheel)r]
sys.path.append(%(site)r)
"""

EVERY_LOSS = """
import p2prl, torch
from p2prl.algorithms import LOSSES, RolloutBatch, build_loss
assert p2prl.__file__.startswith(%(wheel)r), p2prl.__file__
torch.manual_seed(0)
behavior = -torch.rand(2, 3, 4) - 0.1
policy = (behavior + 0.1 * torch.randn(2, 3, 4)).clamp(max=-0.01).requires_grad_()
batch = RolloutBatch(
    behavior_logprobs_BGT=behavior,
    mask_BGT=torch.ones(2, 3, 4, dtype=torch.bool),
    advantages_BG=torch.tensor([[1.0, 0.0, -1.0], [0.5, -1.0, 0.5]]),
    staleness_BG=torch.full((2, 3), 5),
)
for name in LOSSES.names():
    policy.grad = None
    build_loss(name, max_completion_tokens=4).loss(policy, batch).loss.backward()
    assert policy.grad.isfinite().all() and policy.grad.any(), name
print(len(LOSSES.names()), "losses")
"""


def imports_of(path: Path) -> set[str]:
    """Every module a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", [*LIGHT, *ALGORITHMS], ids=lambda path: path.stem)
def test_light_files_import_torch_and_each_other(path: Path) -> None:
    outside = {name for name in imports_of(path) if name.partition(".")[0] not in sys.stdlib_module_names}
    own = re.compile(r"torch(\..+)?|p2prl\.(errors|exit_codes|plugins)|p2prl\.algorithms(\..+)?")
    assert [name for name in sorted(outside) if not own.fullmatch(name)] == []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel, built from a copy so that the tree stays clean."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("light")
    copy_checkout(source, "p2prl", "packaging", "LICENSE")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run(
        [*build, str(source / "packaging" / "p2prl-algorithms")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    zipfile.ZipFile(next(out.glob("*.whl"))).extractall(out / "unpacked")
    return out / "unpacked"


def test_wheel_holds_the_same_files(wheel: Path) -> None:
    shipped = {str(path.relative_to(wheel)) for path in (wheel / "p2prl").rglob("*") if path.is_file()}
    expected = {str(path.relative_to(ROOT)) for path in (*LIGHT, *ALGORITHMS, ROOT / "p2prl" / "py.typed")}
    assert shipped == expected
    assert all((wheel / name).read_bytes() == (ROOT / name).read_bytes() for name in shipped)


def test_wheel_needs_torch_only_and_has_the_same_version(wheel: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    text = metadata.read_text()
    assert re.findall(r"^Requires-Dist: ([\w-]+)", text, re.MULTILINE) == ["torch"]
    assert re.findall(r"^Version: (.+)$", text, re.MULTILINE) == [project["version"]]
    assert "Name: p2prl-algorithms\n" in text


def test_losses_and_a_foreign_trainer_run_where_only_torch_is_installed(wheel: Path) -> None:
    torch = importlib.util.find_spec("torch")
    assert torch is not None
    assert torch.origin is not None
    here = {"allowed": (*TORCH_AND_ITS_OWN, "foreign_trainer"), "wheel": str(wheel)}
    here["site"] = str(Path(torch.origin).parents[1])
    examples = f"sys.path.append({str(ROOT / 'examples')!r})\n"
    trainer = "import foreign_trainer; foreign_trainer.main(updates=3)\n"
    text = BARE_PROCESS % here + examples + EVERY_LOSS % here + trainer
    done = subprocess.run([sys.executable, "-I", "-S", "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first == f"{len(LOSSES.names())} losses"
    assert second.startswith("update   0  reward ")
