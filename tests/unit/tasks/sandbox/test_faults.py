"""Faults of the machine: no descriptors or processes left, a fork server that dies. Calls end, and the pool goes on."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
from typing import Any, cast

import pytest

from p2prl.errors import MachineError
from p2prl.tasks.sandbox import fork_server_main, frames
from p2prl.tasks.sandbox.answer_queue import Job
from p2prl.tasks.sandbox.batch import Batch, ScoredAnswer
from p2prl.tasks.sandbox.confinement import Confinement
from p2prl.tasks.sandbox.fork_server import MAX_RESTARTS, RESTART_WINDOW_S, ForkServer, RestartBudget
from p2prl.tasks.sandbox.pool import PoolConfig, ScorerPool, TaskScoring
from p2prl.tasks.sandbox.scorer_lane import Lane
from p2prl.tasks.sandbox.worker_main import Scorers
from p2prl.tasks.sandbox.worker_process import WorkerEndedError

TASKS = {"forked": TaskScoring("forked obeying")}
WAIT_S = 60


def make_pool() -> ScorerPool:
    return ScorerPool(TASKS, PoolConfig(workers=1), builder="tests.unit.tasks.sandbox.scorer_builder")


def outcome(pool: ScorerPool) -> object:
    """The score of one answer, or the error of the call. `TimeoutError` when the call hangs."""
    call = pool.submit("forked", {}, [("value 1", True)], account=b"a")
    return call.exception(timeout=WAIT_S) or call.result()[0]


def fails_with(code: int) -> Any:
    def call(*arguments: object, **named: object) -> None:
        raise OSError(code, os.strerror(code))

    return call


def test_calls_fail_without_descriptors_and_succeed_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_pool() as pool:
        with monkeypatch.context() as broken:
            broken.setattr(socket, "socketpair", fails_with(errno.EMFILE))
            outcomes = [outcome(pool) for _ in range(6)]  # more than the workers that are ready
        assert isinstance(outcomes[-1], MachineError)
        assert {type(one) for one in outcomes} <= {MachineError, ScoredAnswer}
        assert [outcome(pool) for _ in range(6)] == [ScoredAnswer(1.0)] * 6


def test_calls_fail_without_processes_and_succeed_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_pool() as pool:
        os.kill(pool.fork_server_pid, signal.SIGKILL)
        with monkeypatch.context() as broken:
            broken.setattr(subprocess, "Popen", fails_with(errno.EAGAIN))
            outcomes = [outcome(pool) for _ in range(4)]
        assert isinstance(outcomes[-1], MachineError)
        assert [outcome(pool) for _ in range(4)] == [ScoredAnswer(1.0)] * 4


def test_a_pool_whose_threads_do_not_start_ends_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def start(lane: threading.Thread) -> None:
        started.append(cast(Any, lane)._server.pid)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Lane, "start", start)
    with pytest.raises(MachineError, match="threads"):
        make_pool()
    with pytest.raises(ProcessLookupError):
        os.kill(started[0], 0)


def test_a_fork_server_that_cannot_fork_hangs_up_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", fails_with(errno.EAGAIN))
    control, pool_side = socket.socketpair()
    ours, theirs = socket.socketpair()
    server = fork_server_main._ForkServer(control, {}, Scorers({}, frozenset()), Confinement((), b"", -1))
    with control, pool_side, ours:
        command = fork_server_main.COMMAND.pack(fork_server_main.FORK_ONCE, 1)
        with theirs:
            socket.send_fds(pool_side, [command], [theirs.fileno()])
        assert server._obey()
        ours.settimeout(WAIT_S)
        assert ours.recv(1) == b""
        pool_side.sendall(command)  # its descriptor was lost: the process may open no more
        assert server._obey()


def test_restarts_are_counted_within_a_window_alone() -> None:
    budget = RestartBudget()
    assert all(budget.spend(float(number)) for number in range(MAX_RESTARTS))
    assert not budget.spend(RESTART_WINDOW_S - 0.01)
    assert budget.spend(RESTART_WINDOW_S)  # the first of them no longer counts
    assert not budget.spend(RESTART_WINDOW_S + 0.99)
    assert budget.spend(RESTART_WINDOW_S + 1.0)


class DyingServer:
    """A fork server; `dies` says whether it is another process after the first worker ended."""

    third_party = frozenset({"task"})

    def __init__(self, *, dies: bool) -> None:
        self.pid = 7
        self._dies = dies

    def fork(self, *, once: bool) -> LostWorker:
        return LostWorker()

    def end(self, worker: object) -> None:
        self.pid += self._dies


class LostWorker:
    """A worker that ends while it scores."""

    server, once = 7, True

    def wait_until_ready(self) -> None: ...

    def send(self, request: bytes, *, until: float) -> None: ...

    def reply(self, number: int, *, until: float) -> frames.Reply:
        raise WorkerEndedError


class Charges:
    """A dispatcher that counts what answers are charged."""

    def __init__(self) -> None:
        self.overruns = 0

    def limit_s(self, account: bytes) -> float:
        return 2.0

    def settle(self, job: Job[Batch], answer: ScoredAnswer, *, overrun: bool = False) -> None:
        self.overruns += overrun


@pytest.mark.parametrize("dies", [True, False])
def test_an_answer_pays_for_its_worker_and_not_for_the_fork_server(dies: bool) -> None:
    charges = Charges()
    lane = Lane(cast(ForkServer, DyingServer(dies=dies)), cast(Any, charges), number=0)
    job = Job(Batch("task", b"{}", [("text", True)]), b"a", (0,), attempts=1)
    lane._score(job)
    assert charges.overruns == (0 if dies else 1)
    assert job.attempts == (1 if dies else 2)


def test_replies_of_the_pool_are_its_workers_after_a_restart() -> None:
    with make_pool() as pool:
        for _ in range(3):
            os.kill(pool.fork_server_pid, signal.SIGKILL)
            assert outcome(pool) == ScoredAnswer(1.0)
        assert pool.statistics.overruns == 0
