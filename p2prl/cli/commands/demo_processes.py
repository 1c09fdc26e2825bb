"""Start, watch and stop the processes of a demo: learner, volunteers, cheats, validator and board.

Each runs the real command line with its own session and home folder, and logs to `RUN/logs/NAME.log`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from p2prl.cli.role_files import read_status
from p2prl.errors import MachineError

_LISTEN = ("--listen", "/ip4/127.0.0.1/tcp/0")
_WORKER = (*_LISTEN, "--threads", "1", "--json")

_CHEAT_PROGRAM = "p2prl.testing.cheating_volunteer"
"""Started by module name and never imported, so product code contains no way to cheat."""

_LEAVE_S = 20.0
"""Time for workers to learn that the run has ended and to exit on their own."""


@dataclass(slots=True)
class RoleProcess:
    """One role's process and its output folder."""

    name: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    home: Path | None = None

    def status(self) -> dict[str, Any]:
        """The newest status document; empty before the first one."""
        if self.home is None:
            return {}
        return next((read_status(path) for path in sorted(self.home.glob("*/*/status.json"))), {})


@dataclass(slots=True)
class DemoProcesses:
    """Processes of one demo on the run folder `folder`."""

    folder: Path
    roles: list[RoleProcess] = field(default_factory=list)

    def start_all(self, *, volunteers: int, cheats: int) -> RoleProcess:
        """Start the learner, and the others when it has written its join link. Returns the learner."""
        learner = self._start("learner", "p2prl", "learn", str(self.folder), *_LISTEN)
        link = self._await_link(learner)
        for number in range(1, volunteers + 1):
            self._start(f"volunteer-{number}", "p2prl", "join", link, *_WORKER, own_home=True)
        for number in range(1, cheats + 1):
            self._start(f"cheat-{number}", _CHEAT_PROGRAM, link, *_WORKER, own_home=True)
        self._start("validator", "p2prl", "validate", link, *_WORKER, own_home=True)
        self._start("board", "p2prl", "board", str(self.folder), "--port", "0")
        return learner

    @contextmanager
    def stopped_at_end(self) -> Iterator[DemoProcesses]:
        """At the end of this block, interrupt the processes still running, then kill those that do not exit in time."""
        try:
            yield self
        finally:
            alive = [role for role in self.roles if role.process.poll() is None]
            for role in alive:
                role.process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + _LEAVE_S
            for role in alive:
                try:
                    role.process.wait(timeout=max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    os.killpg(role.process.pid, signal.SIGKILL)
                    role.process.wait()
            for role in self.roles:
                role.log.close()

    def check_ended_well(self, learner: RoleProcess) -> None:
        """Raise `MachineError` when the learner, which has ended, failed."""
        if learner.process.returncode != 0:
            raise MachineError(
                f"the learner exited with status {learner.process.returncode}",
                remedy=f"See the end of {self._log_path('learner')} for the reason.",
            )

    def await_workers(self) -> None:
        """After the learner is done, give the workers time to learn of it and exit."""
        deadline = time.monotonic() + _LEAVE_S
        for role in self.roles:
            if role.name != "board":
                try:
                    role.process.wait(timeout=max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue

    def _start(self, name: str, module: str, *arguments: str, own_home: bool = False) -> RoleProcess:
        """Start `python -m MODULE ARGUMENTS…`."""
        self._log_path(name).parent.mkdir(exist_ok=True)
        log = self._log_path(name).open("wb")
        home = self.folder / "homes" / name if own_home else None
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "P2PRL_HOME": str(home or self.folder / "homes" / "none")}
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        role = RoleProcess(name, process, log, home)
        self.roles.append(role)
        return role

    def _await_link(self, learner: RoleProcess) -> str:
        path = self.folder / "link"
        while not path.exists():
            if learner.process.poll() is not None:
                raise MachineError(
                    f"the learner exited with status {learner.process.returncode} during startup",
                    remedy=f"See the end of {self._log_path('learner')} for the reason.",
                )
            time.sleep(0.1)
        return path.read_text().strip()

    def _log_path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"
