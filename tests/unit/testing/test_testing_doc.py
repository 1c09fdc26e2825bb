"""docs/testing.md: its examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs" / "testing.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=["simulated swarm", "in-memory transport"])
def test_example_runs(example: str) -> None:
    done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_named_modules_exist() -> None:
    names = set(re.findall(r"p2prl(?:_lab)?\.(?:testing|sim)\.\w+", DOC))
    assert {name.partition(".")[0] for name in names} == {"p2prl", "p2prl_lab"}
    paths = {name: (ROOT / "lab" if "_lab" in name else ROOT) / Path(*name.split(".")) for name in names}
    missing = {name for name, path in paths.items() if not (path.is_dir() or path.with_suffix(".py").exists())}
    assert not missing
