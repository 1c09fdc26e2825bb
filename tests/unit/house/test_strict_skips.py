"""A run with `--strict-skips` fails where a missing package hid tests, and only there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.strict_skips import EXPECTED, unexpected
from tests.unit.house.source_tree import ROOT

SKIPS = """
import pytest
@pytest.mark.skipif(True, reason="needs a CUDA card")
def test_of_a_card():
    raise AssertionError
def test_of_a_package():
    pytest.importorskip("{package}")
"""
WHOLE_FILE = "import pytest\npytest.importorskip('absent_library', reason='needs the extra math')\n"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.strict_skips", "-p", "no:cacheprovider", *options],
        cwd=folder, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="make test is strict on Linux")
@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_missing_package_fails_the_run_that_would_skip_its_tests(tmp_path: Path, workers: str) -> None:
    (tmp_path / "test_some.py").write_text(SKIPS.format(package="absent_package"))
    (tmp_path / "test_file.py").write_text(WHOLE_FILE)
    if workers == "0":
        assert run(tmp_path).returncode == 0, "without the option"
    strict = run(tmp_path, "-n", workers, "--strict-skips")
    assert strict.returncode == 1, strict.stdout + strict.stderr
    named = [line for line in strict.stdout.splitlines() if line.startswith("UNEXPECTED SKIP")]
    assert len(named) == 2
    assert "absent_package" in named[0]
    assert "needs the extra math" in named[1]


def test_what_no_package_can_give_is_expected(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(SKIPS.format(package="json"))
    strict = run(tmp_path, "--strict-skips")
    assert strict.returncode == 0, strict.stdout + strict.stderr
    assert "1 passed, 1 skipped" in strict.stdout
    assert unexpected(["no CUDA device", "needs tmux", "this kernel has no Landlock"]) == []


@pytest.mark.skipif(sys.platform != "linux", reason="make test is strict on Linux")
def test_contributors_are_told_what_skipped_tests_need() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    told = [line.split("|")[1].strip() for line in page.splitlines() if line.startswith("| ")]
    assert told[0] == "a skipped test needs"
    assert set(told[1:]) == set(EXPECTED.values())


def test_every_test_of_vllm_runs_in_its_environment() -> None:
    shown = subprocess.run(["make", "-pn", "clean"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (named,) = (line.partition(":= ")[2].split() for line in shown.splitlines() if line.startswith("VLLM_TESTS :="))
    of_vllm = [path for path in (ROOT / "tests").rglob("test_*.py") if "pytest.mark.vllm" in path.read_text()]
    here = Path(__file__)
    assert {str(path.relative_to(ROOT)) for path in of_vllm if path != here} <= set(named)
