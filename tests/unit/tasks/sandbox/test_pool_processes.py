"""Processes of a pool: kills survived, none left behind, and protection from the terminal and from its own end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import Future

import psutil
import pytest

from p2prl.errors import LocalProtocolError
from p2prl.tasks.sandbox.pool import PoolConfig, ScoredAnswer, ScorerPool, TaskScoring
from p2prl_lab.testing.sandbox_attack import sandbox_processes

BUILDER = "tests.unit.tasks.sandbox.scorer_builder"
TASKS = {"exact": TaskScoring("exact"), "obeying": TaskScoring("obeying"), "forked": TaskScoring("forked obeying")}
ROW = {"answer": "42"}
ENDED = ScoredAnswer(0.0, "ended")

PARENT = f"""
import sys
from p2prl.tasks.sandbox.pool import ScorerPool, TaskScoring
pool = ScorerPool({{n: TaskScoring(n) for n in ("obeying", "forked obeying")}}, builder={BUILDER!r})
calls = [pool.submit(n, {{}}, [("sleep 1000", True)], account=n.encode()) for n in ("obeying", "forked obeying")]
print(pool.fork_server_pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("task", ["obeying", "forked"])
def test_a_pool_survives_kills_without_zombies(task: str) -> None:
    with ScorerPool(TASKS, PoolConfig(workers=2), builder=BUILDER) as pool:
        got = pool.score(task, ROW, [("end", True)] * 30, account=b"crashing")
        assert got == (ENDED,) * 30
        assert pool.score("exact", ROW, [("42", True)], account=b"honest") == (ScoredAnswer(1.0),)
        # At most each of the four lanes' workers, and one before it that is being collected; 30 and more have ended.
        assert len(psutil.Process(pool.fork_server_pid).children()) <= 2 * 4
    assert sandbox_processes(os.getpid()) == []


def test_a_worker_that_the_system_kills_is_replaced_and_its_answers_scored() -> None:
    with ScorerPool(TASKS, PoolConfig(workers=1), builder=BUILDER) as pool:
        pool.score("exact", ROW, [("42", True)], account=b"a")
        for worker in psutil.Process(pool.fork_server_pid).children():
            worker.kill()
        got = pool.score("exact", ROW, [("42", True), ("41", True)], account=b"a")
        assert [scored.value for scored in got] == [1.0, 0.0]
        assert pool.statistics.overruns == 0


def test_a_fork_server_that_dies_is_started_again() -> None:
    with ScorerPool(TASKS, PoolConfig(workers=1), builder=BUILDER) as pool:
        first = pool.fork_server_pid
        assert pool.score("exact", ROW, [("42", True)], account=b"a") == (ScoredAnswer(1.0),)
        os.kill(first, signal.SIGKILL)
        for _ in range(3):
            assert pool.score("forked", ROW, [("value 1", True)] * 3, account=b"a") == (ScoredAnswer(1.0),) * 3
        assert pool.fork_server_pid != first
    assert sandbox_processes(os.getpid()) == []


def test_the_terminal_does_not_reach_the_workers() -> None:
    with ScorerPool(TASKS, builder=BUILDER) as pool:
        server = psutil.Process(pool.fork_server_pid)
        assert os.getsid(server.pid) == server.pid != os.getsid(0)
        waiting = pool.submit("obeying", ROW, [("sleep 0.3", True), ("value 1", True)], account=b"a")
        for process in [server, *server.children()]:
            process.send_signal(signal.SIGINT)
        assert waiting.result() == (ScoredAnswer(0.0), ScoredAnswer(1.0))


def test_workers_end_with_a_pool_that_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdin is not None
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    processes = sandbox_processes(parent.pid)
    assert any(process.pid == server for process in processes)
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    psutil.wait_procs(processes, timeout=30)
    assert sandbox_processes(parent.pid) == []


def test_closing_ends_the_calls_that_wait() -> None:
    pool = ScorerPool(TASKS, PoolConfig(workers=1, limit_s=60), builder=BUILDER)
    calls: list[Future[tuple[ScoredAnswer, ...]]] = [
        pool.submit("obeying", ROW, [("sleep 1000", True)], account=b"%d" % number) for number in range(4)
    ]
    pool.close()
    pool.close()
    for call in calls:
        with pytest.raises(LocalProtocolError, match="closed"):
            call.result(timeout=30)
    with pytest.raises(LocalProtocolError, match="closed"):
        pool.score("exact", ROW, [("42", True)], account=b"a")
