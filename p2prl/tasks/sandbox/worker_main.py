"""A worker: a confined process that scores the answers its pool sends, forked by the fork server.

A worker of third-party scorers scores one answer and is then ended: whatever an answer did to the process ends with it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from p2prl.confinement import linux
from p2prl.confinement.pipe_io import read_exactly, write_all
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.row_scorer import RowScorer, SumScorer
from p2prl.tasks.sandbox import frames
from p2prl.tasks.sandbox.confinement import Confinement, confine_worker
from p2prl.tasks.sandbox.frames import Reply

_ALARM_MARGIN_S = 1.0
"""A worker ends itself this long after its limit: by then its pool would have, so the pool is gone."""

_CPU_MARGIN_S = 2
"""CPU time of a worker for one answer beyond its seconds: several threads use more than the clock shows."""


@dataclass(frozen=True)
class Scorers:
    """The scorers of a run, as built by the fork server."""

    by_task: Mapping[str, RowScorer]
    third_party: frozenset[str]
    """Tasks whose scorers run third-party code."""


def run_worker(
    descriptor: int, scorers: Scorers, confinement: Confinement, *, memory_bytes: int, limit_s: float, once: bool
) -> NoReturn:
    """Confine this freshly forked process, then score until the pool hangs up. `once`: one answer only."""
    try:
        cpu_s = int(limit_s) + _CPU_MARGIN_S if once else 0
        confine_worker(confinement, memory_bytes=memory_bytes, cpu_s=cpu_s)
        _seed_global_generators()
        write_all(descriptor, frames.READY.pack(b"R", os.getpid()))
        while payload := _next_request(descriptor):
            _answer(descriptor, payload, scorers, once=once)
            if once:
                break
    finally:
        os._exit(0)


def prepare_fork(parent: int, keep: tuple[int, ...], *, once: bool) -> None:
    """First steps of a forked worker: end with its parent, keep only the given descriptors and standard streams.

    On Linux a worker of third-party code gets a session of its own, because the kernel's autogroups share a busy
    processor by session: beside a hung answer in theirs, the workers of quick answers would wait for it.
    """
    if sys.platform == "linux":
        linux.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        if once:
            os.setsid()
    first = 3
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _answer(descriptor: int, payload: bytes, scorers: Scorers, *, once: bool) -> None:
    task, limit_s, answers, row = frames.read_request(payload)
    if task in scorers.third_party and not once:
        return  # the pool never asks for it; ending here scores nothing
    scorer = scorers.by_task[task]
    for number, (text, finished) in enumerate(answers):
        signal.setitimer(signal.ITIMER_REAL, limit_s + _ALARM_MARGIN_S)
        try:
            reply = _scored(number, scorer, row, text, finished)
        except MemoryError:
            reply = Reply(number, frames.OUT_OF_MEMORY, 0.0)
        except BaseException as error:  # noqa: BLE001  # SystemExit too: an answer may raise anything
            reply = Reply(number, frames.FAILED, 0.0, _first_line(error))
        write_all(descriptor, frames.reply_bytes(reply))
        if once:
            return
    signal.setitimer(signal.ITIMER_REAL, 0)


def _scored(number: int, scorer: RowScorer, row: Row, text: str, finished: bool) -> Reply:
    if isinstance(scorer, SumScorer):
        parts = scorer.parts(row, text, finished)
        return _reply(number, scorer.total(parts), parts)
    return _reply(number, scorer.score(row, text, finished))


def _reply(number: int, score: object, parts: tuple[float | None, ...] = ()) -> Reply:
    if isinstance(score, int | float) and frames.is_score(value := float(score)):
        return Reply(number, frames.SCORED, value, parts=parts)
    is_told = score is None or isinstance(score, int | float)
    shown = repr(score) if is_told else f"a value of type {type(score).__name__}"
    return Reply(number, frames.NOT_A_SCORE, 0.0, shown[: frames.MAX_ERROR_BYTES])


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0][: frames.MAX_ERROR_BYTES]


def _seed_global_generators() -> None:
    """A scorer that draws numbers draws the same ones in every worker. Python seeds `random` anew in each fork."""
    random.seed(0)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(0)


def _next_request(descriptor: int) -> bytes:
    """The next request's payload; empty when the pool has hung up."""
    header = read_exactly(descriptor, frames.HEADER_BYTES)
    return read_exactly(descriptor, frames.payload_bytes(header)) if header else b""
