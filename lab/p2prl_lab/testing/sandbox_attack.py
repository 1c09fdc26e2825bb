"""An attack on a scorer pool: every hostile answer against one task, then a look for what escaped."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from p2prl.tasks.sandbox.pool import ScoredAnswer, ScorerPool
from p2prl_lab.testing.hostile_answers import SECRET, HostileAnswer, Kind, Target, hostile_answers

ROW = {"prompt": "6*7=", "rendered": "6*7=", "answer": "42", "letter": "C"}
"""Every answer is to this row."""


@dataclass(frozen=True)
class Outcome:
    """A hostile answer and its result."""

    answer: HostileAnswer
    scored: ScoredAnswer
    seconds: float
    """From the call to its result, time in the queue included."""


class Attack:
    """A machine worth attacking: a key file in its own folder and a listening port."""

    def __init__(self, folder: Path, listener: socket.socket) -> None:
        """`folder` is empty and stays so, but for the key."""
        self._listener = listener
        self._key = folder / "key"
        self._key.write_text(SECRET)
        self._before = self._key.stat()
        self.answers = hostile_answers(Target(self._key, listener.getsockname()[1], os.getpid()))

    def run(self, pool: ScorerPool, task: str, *, together: bool) -> list[Outcome]:
        """Have each answer scored for an account of its own: one after the other, or all `together`."""
        calls: list[tuple[HostileAnswer, float, Future[tuple[ScoredAnswer, ...]]]] = []
        ended: dict[int, float] = {}
        for number, answer in enumerate(self.answers):
            began = time.monotonic()
            call = pool.submit(task, ROW, [(answer.text, True)], account=b"%s %d" % (task.encode(), number))
            call.add_done_callback(lambda _call, number=number: ended.setdefault(number, time.monotonic()))  # type: ignore[misc]
            calls.append((answer, began, call))
            if not together:
                call.result()
        results = [call.result() for _answer, _began, call in calls]
        return [
            Outcome(answer, result[0], ended[number] - began)
            for number, ((answer, began, _call), result) in enumerate(zip(calls, results, strict=True))
        ]

    def escapes(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Answers to a scorer that executes them that got out, by their own account or by their traces."""
        scored = [o.answer.text for o in outcomes if o.answer.kind is Kind.ESCAPE and o.scored.value]
        return scored + self.traces(outcomes)

    def traces(self, outcomes: Sequence[Outcome]) -> list[str]:
        """Traces of an answer that got out: a file, a connection, or the secret."""
        found = [o.answer.text for o in outcomes if SECRET in o.scored.failure]
        found += [f"made {path}" for path in self._key.parent.iterdir() if path != self._key]
        after = self._key.stat()
        if (after.st_mode, after.st_uid, after.st_mtime_ns, after.st_nlink) != (
            self._before.st_mode, self._before.st_uid, self._before.st_mtime_ns, self._before.st_nlink,
        ) or self._key.read_text() != SECRET:  # fmt: skip
            found.append("the key file changed")
        self._listener.setblocking(False)
        try:
            self._listener.accept()
            found.append("a connection")
        except BlockingIOError:
            pass
        return found


@contextmanager
def attack(folder: Path) -> Iterator[Attack]:
    """An attack with its key in an empty folder."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Attack(folder, listener)


def sandbox_processes(pool_pid: int) -> list[psutil.Process]:
    """Fork servers and workers of the pools of a process, without those that ended and wait to be collected."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if f"pool={pool_pid}" in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
