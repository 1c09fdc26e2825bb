"""Runs of pytest in forks of one process that has imported torch already, and the tests that execute a line.

A fork has imported no module of the tree under test, so it reads each file as it is at that moment, and costs a tenth
of a new interpreter.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Literal, NoReturn

import coverage
import msgspec
import pytest

HEAVY = ("numpy", "torch", "transformers.modeling_utils", "numba", "hypothesis", "msgspec", "fastapi", "rich", "typer")
"""Libraries that most tests import; none of them imports the tree under test."""

_START = "import sys; from p2prl_lab.mutation_runs import main; main(sys.argv[1:])"

_WAITING_S = 120
"""Longest time of one test by the clock, for a flip that makes it wait without end; far above any test's, so that
a busy machine takes less."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """Tests to run in the current folder, in this order."""

    tests: tuple[str, ...]
    """Files, folders or names of tests."""
    coverage: str = ""
    """Where to write the tests that execute each line; empty to stop at the first failure instead."""
    limit_s: float
    """Of all of them together, by the clock."""
    test_s: float = 60.0
    """Of one test, by the processor, which other work does not use up: a flip that makes a loop endless is noticed."""
    quick: bool = False
    """Leave out tests that `tests/conftest.py` marks as slow."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the tests."""

    outcome: Literal["passed", "failed", "unread", "late"]
    """`unread`: a test file could not be imported, or pytest or the process itself failed."""
    failed: tuple[str, ...] = ()
    """Names of the tests that failed, in order, without their parameters."""
    durations: dict[str, float] = {}
    """Of each test that ended, with all its parameters, seconds."""


class Runner:
    """A process to fork from, in a tree of its own."""

    def __init__(self, tree: Path, *, heavy: Sequence[str] = HEAVY) -> None:
        """`heavy` are the modules that it imports once."""
        path = os.pathsep.join([str(tree), str(tree / "lab")])
        # With CI hypothesis draws the same examples every time and keeps none, so a flip fares alike in each run.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, *heavy],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CI": "true"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def run(self, request: Request) -> Answer:
        """Run tests, and wait for their end."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(request) + b"\n")
        self._process.stdin.flush()
        return msgspec.json.decode(self._process.stdout.readline(), type=Answer)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def executed_lines(recorded: Path, tree: Path) -> dict[str, dict[int, frozenset[str]]]:
    """The tests that executed each line of each file of `tree`, by its path in there. "" stands for importing it."""
    data = coverage.CoverageData(str(recorded))
    data.read()
    root = tree.resolve()
    return {
        str(Path(file).relative_to(root)): {
            line: frozenset(names) for line, names in data.contexts_by_lineno(file).items()
        }
        for file in data.measured_files()
    }


class _Recorder:
    """A plugin of pytest that keeps failures and durations, and says which test executes a line."""

    def __init__(self, measured: coverage.Coverage | None, test_s: float) -> None:
        self.failed: list[str] = []
        self.durations: dict[str, float] = {}
        self._measured = measured
        self._test_s = test_s
        signal.signal(signal.SIGPROF, _end_test)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Called by pytest around each test."""
        name = _function(item.nodeid)
        if self._measured is not None:
            self._measured.switch_context(name)
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_PROF, self._test_s, self._test_s)  # again, for a test that tries again
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            self.durations[name] = self.durations.get(name, 0.0) + time.monotonic() - began
            if self._measured is not None:
                self._measured.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest."""
        if report.failed:
            self.failed.append(_function(report.nodeid))


def _end_test(*_: object) -> None:
    pytest.fail("it has no end")


def _function(nodeid: str) -> str:
    """The name of a test without its parameters, whose text pytest does not always read back."""
    return nodeid.partition("[")[0]


def _answered(request: Request) -> Answer:
    """Run the request in this process."""
    options = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", f"--timeout={_WAITING_S}"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # plugins are among what was imported already
    options += ["-m", "not slow"] if request.quick else []
    measured = None
    if request.coverage:
        top = Path.cwd()
        folders = [str(top / name / "*") for name in ("p2prl", "client", "validator", "protocol")]
        measured = coverage.Coverage(data_file=request.coverage, include=folders, config_file=False)
        measured.start()
    else:
        options.append("-x")
    recorder = _Recorder(measured, request.test_s)
    status = pytest.main([*options, *request.tests], plugins=[recorder])
    if measured is not None:
        measured.stop()
        measured.save()
    outcome: Literal["passed", "failed", "unread"]
    if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        outcome = "passed"
    else:
        outcome = "failed" if recorder.failed else "unread"
    return Answer(outcome=outcome, failed=tuple(recorder.failed), durations=recorder.durations)


def _in_fork(request: Request) -> Answer:
    """The answer of a fork; `late` if it has not come in time, when everything that it started is killed."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        _be_fork(request, writable)
    os.close(writable)
    answer = Answer(outcome="late")
    with os.fdopen(readable, "rb") as answers:
        if select.select([answers], [], [], request.limit_s)[0]:
            data = answers.read()
            answer = msgspec.json.decode(data, type=Answer) if data else Answer(outcome="unread")
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return answer


def _be_fork(request: Request, writable: int) -> NoReturn:
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)
        answer = msgspec.json.encode(_answered(request))
        while answer:
            answer = answer[os.write(writable, answer) :]
    finally:
        os._exit(0)


def main(heavy: Sequence[str]) -> None:
    """Import these modules, then answer the requests on standard input, a line of JSON each, until it ends."""
    for name in heavy:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer:
        answer = _in_fork(msgspec.json.decode(line, type=Request))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


def slowest_last(
    tests: Sequence[str], durations: Mapping[str, float], *, within_s: float, first: Set[str] = frozenset()
) -> tuple[str, ...]:
    """Tests by their duration, the fastest first, as many as end within `within_s` together, but one at least.

    Those of `first` come before the others.
    """
    ordered = sorted(tests, key=lambda name: (name not in first, durations.get(name, 0.0), name))
    taken: list[str] = []
    left_s = within_s
    for name in ordered:
        left_s -= durations.get(name, 0.0)
        if taken and left_s < 0:
            break
        taken.append(name)
    return tuple(taken)
