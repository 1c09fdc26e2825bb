"""Mutants in a tree of two files: killed by the tests that execute their line, and by no others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl_lab.mutants import Mutants
from p2prl_lab.mutation_runs import Request, Runner, executed_lines, slowest_last
from p2prl_lab.mutation_sites import sites

PRODUCT = """\
LIMIT = 10


def is_small(size: int) -> bool:
    return size < LIMIT


def is_even(size: int) -> bool:
    return size % 2 == 0


def untested(size: int) -> bool:
    return size > 3
"""
TESTS = """\
from protocol.sizes import is_even, is_small

def test_small():
    assert is_small(9) and not is_small(10)

def test_even():
    assert is_even(4)
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name, text in {"protocol/sizes.py": PRODUCT, "tests/unit/protocol/test_sizes.py": TESTS}.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    (root / "protocol/__init__.py").touch()
    (root / "pytest.ini").write_text("[pytest]\ntimeout = 60\n")
    return root


@pytest.fixture
def mutants(tree: Path) -> Iterator[Mutants]:
    made = Mutants(tree.parent, heavy=["msgspec"])
    yield made
    made.close()


def test_each_mutant_gets_the_tests_of_its_line(mutants: Mutants, tree: Path) -> None:
    source = (tree / "protocol/sizes.py").read_bytes()
    rows = [mutants.tried("protocol/sizes.py", site) for site in sites(source)]
    found = {row.flip.partition(":")[0]: (row.outcome, row.test, row.tests) for row in rows if row}
    small, even = (f"tests/unit/protocol/test_sizes.py::test_{name}" for name in ("small", "even"))
    assert found["1"] == ("killed", small, 2), "a constant: every test of the room"
    assert found["5"] == ("killed", small, 1)
    assert {flip.flip.split(": ")[1]: flip.outcome for flip in rows if flip and flip.flip.startswith("9:")} == {
        "'2' becomes '4'": "survived",
        "'==' becomes '!='": "killed",
        "'0' becomes '1'": "killed",
    }
    assert found["9"][1:] == (even, 1)
    assert found["13"] == ("survived", "", 3), "the file that imports the module, and every test of the room"
    assert (tree / "protocol/sizes.py").read_bytes() == source
    again = Mutants(tree.parent, heavy=["msgspec"])
    assert [again.tried("protocol/sizes.py", site) for site in sites(source)] == [None] * len(rows), "known from disk"
    again.close()


PROPERTIES = """\
import pytest
from hypothesis import given, settings, strategies as st
from protocol.sizes import LIMIT, is_even, is_small

settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")

@given(st.integers(LIMIT, 99))
def test_a_large_size(size):
    assert not is_small(size)

@given(st.sampled_from([8, 4]))
def test_a_power_of_two(size):
    assert is_even(size)

@pytest.mark.slow
def test_six():
    assert is_even(6)
"""


def test_only_properties_that_do_not_hold_kill_a_mutant(tree: Path) -> None:
    (tree / "tests/unit/protocol/test_sizes.py").write_text(PROPERTIES)
    (tree / "pytest.ini").write_text("[pytest]\ntimeout = 60\nfilterwarnings = error\nmarkers = slow: left out\n")
    mutants = Mutants(tree.parent, heavy=["msgspec", "hypothesis"], quick=True)
    source = (tree / "protocol/sizes.py").read_bytes()
    rows = {site.described(source): mutants.tried("protocol/sizes.py", site) for site in sites(source)}
    mutants.close()
    outcomes = {flip: (row.outcome, row.tests) for flip, row in rows.items() if row}
    assert outcomes["9:19: '2' becomes '4'"] == ("survived", 1), "the slow test would fail"
    assert outcomes["9:21: '==' becomes '!='"] == ("killed", 1)
    assert outcomes["5:17: '<' becomes '<='"] == ("killed", 1)
    assert outcomes["1:9: '10' becomes '20'"] == ("survived", 2)


def test_near_a_mutant_are_the_files_of_tests_that_import_its_module(tree: Path) -> None:
    (tree / "tests/unit/protocol/test_others.py").write_text("def test_nothing():\n    assert False\n")
    (tree / "tests/unit/protocol/test_wrong_sizes.py").write_text(
        "from protocol.sizes import is_even\n\ndef test_five():\n    assert is_even(5)\n"
    )
    mutants = Mutants(tree.parent, heavy=["msgspec"], near=True)
    source = (tree / "protocol/sizes.py").read_bytes()
    rows = {site.described(source): mutants.tried("protocol/sizes.py", site) for site in sites(source)}
    mutants.close()
    outcomes = {flip: (row.outcome, row.tests) for flip, row in rows.items() if row}
    assert outcomes["5:17: '<' becomes '<='"] == ("killed", 2)
    assert outcomes["13:19: '3' becomes '6'"] == ("undecided", 2), "a test that fails without it kills nothing"
    assert not list(tree.parent.glob("*.coverage"))


def test_lines_have_the_tests_that_execute_them(tree: Path) -> None:
    runner = Runner(tree, heavy=["msgspec"])
    recorded = tree.parent / "recorded"
    answer = runner.run(Request(tests=("tests",), coverage=str(recorded), limit_s=60.0))
    late = runner.run(Request(tests=("tests",), limit_s=0.0))
    (tree / "tests/unit/protocol/test_sizes.py").write_text("import nothing_of_that_name\n")
    unread = runner.run(Request(tests=("tests",), limit_s=60.0))
    runner.close()
    assert (answer.outcome, len(answer.durations)) == ("passed", 2)
    lines = executed_lines(recorded, tree)["protocol/sizes.py"]
    assert lines[1] == {""}
    assert lines[5] == {"tests/unit/protocol/test_sizes.py::test_small"}
    assert 13 not in lines
    assert (late.outcome, unread.outcome) == ("late", "unread")


PATIENCE = """\
import threading

def test_waits():
    assert not threading.Event().wait(0.6)

def test_loops():
    while True:
        pass
"""


def test_an_endless_loop_fails_a_test_and_a_busy_machine_does_not(tree: Path) -> None:
    (tree / "tests/unit/protocol/test_sizes.py").write_text(PATIENCE)
    runner = Runner(tree, heavy=["msgspec"])
    answer = runner.run(Request(tests=("tests",), limit_s=60.0, test_s=0.5))
    runner.close()
    assert (answer.outcome, answer.failed) == ("failed", ("tests/unit/protocol/test_sizes.py::test_loops",))


def test_the_fastest_tests_run_first_and_the_slowest_not_at_all() -> None:
    seconds = {"slow": 50.0, "fast": 1.0, "middle": 8.0}
    assert slowest_last(["slow", "middle", "fast"], seconds, within_s=60.0) == ("fast", "middle", "slow")
    assert slowest_last(["slow", "middle", "fast"], seconds, within_s=10.0) == ("fast", "middle")
    assert slowest_last(["slow"], seconds, within_s=10.0) == ("slow",)
    assert slowest_last(list(seconds), seconds, within_s=55.0, first={"slow"}) == ("slow", "fast")
