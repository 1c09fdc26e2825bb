"""Processes of a real swarm: start roles by the command line, kill them, and find survivors.

Every process of a swarm has the swarm's mark in its environment, which its network process and daemon inherit. So a
survivor is found even when its parent is dead and the system has reparented it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from p2prl.protocol.join_link import parse_link
from p2prl_lab.testing.forked_roles import ForkedRole, run_fork, start_fork

Process = subprocess.Popen[bytes] | ForkedRole

MARK = "P2PRL_TEST_SWARM"
LISTEN = ("--listen", "/ip4/127.0.0.1/tcp/0")
_FOLDER = re.compile(r"/unix(/tmp/p2prl-[^/]+)/")
_PAUSE = threading.Event()


PATIENCE = 4.0
"""Machines differ by this much in speed. A limit that only ends what hangs is this many times the usual."""

EXACTLY = 1.0
"""Of a limit that is a promise to users, on any machine."""


def wait_until(
    condition: Callable[[], Any],
    *,
    seconds: float,
    what: str,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
) -> Any:
    """Poll until `condition` is true and return its value.

    AssertionError naming `what` after `patience` times `seconds`, by `clock`.
    """
    limit = patience * seconds
    until = clock() + limit
    while not (value := condition()):
        assert clock() < until, f"{what}: not within {limit:g} s"
        _PAUSE.wait(0.05)
    return value


@dataclass(slots=True)
class RoleProcess:
    """One `p2prl ARGUMENTS…` (or another module) and the processes it started."""

    name: str
    python: str
    """The interpreter."""
    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    log_path: Path
    process: Process

    @property
    def log(self) -> str:
        """Its output, across restarts."""
        return self.log_path.read_text(errors="replace")

    @property
    def is_alive(self) -> bool:
        """Whether the main process is running."""
        return self.process.poll() is None

    def tree(self) -> list[psutil.Process]:
        """The main process, its network process and its daemon, as far as they are running."""
        try:
            main = psutil.Process(self.process.pid)
            return [main, *main.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def network(self) -> psutil.Process | None:
        """The network process."""
        return next((p for p in self.tree() if "p2prl.net.process" in _command_line(p)), None)

    def daemon(self) -> psutil.Process | None:
        """The libp2p daemon."""
        return next((p for p in self.tree() if _is_daemon(p)), None)

    def wait(self, seconds: float) -> int:
        """Wait for it to exit and return its status.

        AssertionError with its last output after `PATIENCE` times `seconds`.
        """
        try:
            return self.process.wait(timeout=PATIENCE * seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not exit within {seconds:g} s:\n{self.log[-2000:]}") from None


@dataclass(slots=True)
class SwarmProcesses:
    """The processes of one test."""

    folder: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    roles: dict[str, RoleProcess] = field(default_factory=dict)
    forks: bool = False
    """Whether roles are forks of a process that has imported the program (`forked_roles.py`), which start at once."""

    @contextlib.contextmanager
    def running(self) -> Iterator[SwarmProcesses]:
        """Kill everything of the swarm at the end of the block, also after an exception."""
        try:
            yield self
        finally:
            for process in self.survivors():
                with contextlib.suppress(psutil.Error):
                    process.kill()
            for role in self.roles.values():
                role.process.wait()

    def environment(self, home: Path | None = None) -> dict[str, str]:
        """Environment of the swarm's processes: one thread each, and their own home folder."""
        own = {"OMP_NUM_THREADS": "1", MARK: self.mark, "P2PRL_HOME": str(home or self.folder / "home")}
        return {**os.environ, **own}

    def start(
        self,
        name: str,
        *arguments: str,
        home: Path | None = None,
        module: str = "p2prl",
        python: str = sys.executable,
        variables: Mapping[str, str] | None = None,
    ) -> RoleProcess:
        """Start `python -m module ARGUMENTS…`; its output goes to `folder/name.log`.

        `variables` are added to the swarm's environment.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        log_path = self.folder / f"{name}.log"
        environment = self.environment(home) | dict(variables or {})
        process = self._launch(python, module, arguments, environment, log_path)
        role = RoleProcess(name, python, module, arguments, environment, log_path, process)
        self.roles[name] = role
        return role

    def start_again(self, role: RoleProcess) -> None:
        """Run the same command again."""
        assert not role.is_alive
        role.process = self._launch(role.python, role.module, role.arguments, role.environment, role.log_path)

    def survivors(self) -> list[psutil.Process]:
        """Every living process of the swarm, whatever its parent is now."""
        main = {role.process.pid for role in self.roles.values() if role.is_alive}
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                of_swarm = process.pid in main or process.environ().get(MARK) == self.mark
                if of_swarm and not has_ended(process):
                    found.append(process)
        return found

    def await_end(self, seconds: float) -> None:
        """Wait until every process has ended; AssertionError after `seconds`, which users were promised."""
        what = "an end of every process"
        wait_until(lambda: not self.survivors(), seconds=seconds, what=what, patience=EXACTLY)

    def _launch(
        self, python: str, module: str, arguments: tuple[str, ...], environment: dict[str, str], log_path: Path
    ) -> Process:
        with log_path.open("ab") as log:
            if self.forks and python == sys.executable:
                return start_fork(arguments, environment, log.fileno(), module=module)
            return subprocess.Popen(
                [python, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )


def command(*arguments: str, environment: dict[str, str], timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run `p2prl ARGUMENTS…` to its end, in a fork: most commands need less time than their imports."""
    return run_fork(arguments, environment, timeout_s=PATIENCE * timeout_s)


def lasting(link: str) -> tuple[str, str]:
    """What a join link keeps over restarts: the run with its digest, and the learner's address. Peers come and go."""
    parsed = parse_link(link.strip())
    return f"{parsed.name}@{parsed.run.hex()}", parsed.bootstrap[0]


def kill_main(role: RoleProcess) -> list[psutil.Process]:
    """SIGKILL the main process alone, and return its orphans."""
    orphans = [p for p in role.tree() if p.pid != role.process.pid]
    role.process.kill()
    role.process.wait()
    return orphans


def kill_tree(role: RoleProcess) -> None:
    """SIGKILL the main process, its network process and its daemon at once."""
    processes = role.tree()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    role.process.wait()


def freeze(child: subprocess.Popen[Any]) -> None:
    """Stop a process that this one started, and wait until the last of its threads has stopped."""
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)


def stop_sending(processes: list[psutil.Process]) -> None:
    """Freeze processes at one moment: the machine sleeps, or appears offline to everyone else."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)


def go_on(processes: list[psutil.Process]) -> None:
    """Thaw processes that `stop_sending` froze, as far as they still exist."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)


def have_ended(processes: list[psutil.Process]) -> bool:
    """Whether all of these have exited."""
    return all(map(has_ended, processes))


def has_ended(process: psutil.Process) -> bool:
    """Whether it has exited, be it a zombie, or reaped while it is looked at."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def daemon_folder(daemon: psutil.Process) -> Path:
    """The folder of a daemon's sockets."""
    found = folder_if_running(daemon)
    assert found is not None
    return found


def folder_if_running(daemon: psutil.Process) -> Path | None:
    """The folder of a daemon's sockets; None when it has ended since it was listed, as that of an excluded cheat."""
    found = _FOLDER.search(" ".join(_command_line(daemon)))
    return None if found is None else Path(found.group(1))


def status_of(home: Path) -> dict[str, Any]:
    """The last status file of the only worker folder under `home`; empty before the first."""
    return next((json.loads(path.read_text()) for path in sorted(home.glob("*/*/status.json"))), {})


def spools(home: Path) -> list[Path]:
    """Every spool under a home."""
    return sorted(home.glob("*/*/spool.db"))


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    """Rows of a query on a database that another process may be writing to."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _is_daemon(process: psutil.Process) -> bool:
    parts = _command_line(process)
    return bool(parts) and Path(parts[0]).name == "p2pd"
