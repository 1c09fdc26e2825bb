"""Run the real program in separate processes, with a full disk or altered modules, and inspect its output files."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from p2prl.config.new_run import init_run
from p2prl.config.presets import preset_by_name
from p2prl.config.worker_folder import read_status
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.testing.forked_roles import run_fork, start_fork
from p2prl_lab.testing.swarm_processes import PATIENCE, Process

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "P2PRL_HOME": "/nonexistent/p2prl"}
LISTEN = ("--listen", "/ip4/127.0.0.1/tcp/0")
SETTINGS = preset_by_name("chain4").settings_text()


def p2prl(*arguments: object, file_limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program to its end; `file_limit` is the largest file it may write, bytes."""
    words = tuple(map(str, arguments))
    return run_fork(words, ENVIRONMENT, timeout_s=60 * PATIENCE, file_limit=file_limit)


def refused(result: subprocess.CompletedProcess[str], code: int, words: str) -> None:
    """One sentence with these words, a remedy, the code, no data and no traceback."""
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    *_, sentence, remedy = result.stderr.splitlines()
    assert sentence.startswith("p2prl: ")
    assert words in sentence
    assert remedy.startswith("       ")
    assert remedy.strip()


def make_run(directory: Path) -> Path:
    """A run folder with a small model."""
    made = tiny_model(seed=3)
    made.model.save_pretrained(directory / "model")
    made.tokenizer.save_pretrained(directory / "model")
    plan = RunPlan(name="bad-input", goal="test", task="chain4", model=str(directory / "model"))
    init_run(directory / "run", plan, settings=SETTINGS, on_progress=lambda stage, share: None)
    return directory / "run"


def eventually(condition: Callable[[], bool], *, seconds: float = 100.0) -> None:
    """Wait until `condition` holds; fail after `PATIENCE` times `seconds`."""
    until, pause = time.monotonic() + PATIENCE * seconds, threading.Event()
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        pause.wait(0.05)


def patched_python(folder: Path, code: str) -> Path:
    """A folder whose `sitecustomize` runs `code` first in a role and in every Python process that it starts."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return folder


def environment_with(folder: Path) -> dict[str, str]:
    """The environment with `folder` first among the module paths."""
    paths = [str(folder), *filter(None, [ENVIRONMENT.get("PYTHONPATH")])]
    return {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(paths)}


class RunningRole:
    """A role in a separate process, with its output in a log file."""

    def __init__(
        self, log: Path, *arguments: object, file_limit: int | None = None, patched: Path | None = None
    ) -> None:
        self.log = log
        self._file = log.open("wb")
        words = tuple(map(str, arguments))
        self.process: Process = start_fork(
            words,
            ENVIRONMENT if patched is None else environment_with(patched),
            self._file.fileno(),
            file_limit=file_limit,
            first=None if patched is None else patched / "sitecustomize.py",
        )

    def said(self) -> str:
        """Everything printed so far."""
        return self.log.read_text()

    def stop(self) -> int:
        """Ctrl-C, then the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=40 * PATIENCE)
        self._file.close()
        return code


@contextmanager
def running(
    log: Path, *arguments: object, file_limit: int | None = None, patched: Path | None = None
) -> Iterator[RunningRole]:
    """`p2prl ARGUMENTS…` while this block runs."""
    role = RunningRole(log, *arguments, file_limit=file_limit, patched=patched)
    try:
        yield role
    finally:
        role.stop()


@contextmanager
def live_learner(directory: Path) -> Iterator[tuple[Path, RunningRole]]:
    """A run folder and its endless learner, which must still run after this block and then stop cleanly."""
    folder = make_run(directory)
    with running(directory / "learner.log", "learn", folder, "--updates", 0, *LISTEN) as learner:
        eventually((folder / "link").exists)
        yield folder, learner
        assert learner.process.poll() is None, learner.said()
        assert learner.stop() == 130
        assert "Traceback" not in learner.said()


def spool_groups(home: Path) -> dict[bytes, str]:
    """State of each group in the spool of the first volunteer under `home`, by digest."""
    (path,) = home.glob("seat-1/*/spool.db")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as spool:
        return dict(spool.execute("SELECT digest, state FROM groups"))


def spool_states(home: Path) -> dict[str, int]:
    """Groups in that spool by state."""
    return dict(Counter(spool_groups(home).values()))


def volunteer_status(home: Path) -> dict[str, Any]:
    """The newest status of the first volunteer under `home`; empty before the first."""
    return next((read_status(path) for path in home.glob("seat-1/*/status.json")), {})
