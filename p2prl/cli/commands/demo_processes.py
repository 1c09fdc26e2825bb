"""Start, watch and stop the processes of a demo: learner, volunteers, cheats, validator, board and index.

Each runs the real command line with its own session and home folder, and logs to `RUN/logs/NAME.log`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from p2prl.config.worker_folder import read_status
from p2prl.errors import MachineError, UnreachableError
from p2prl.exit_codes import RUN_FINISHED
from p2prl.index.run_finder import RunFinder
from p2prl.net.listen_addresses import LOOPBACK_LISTEN, free_port
from p2prl.plain_text import cleaned, counted

_ERROR = "p2prl: "
"""Before the message of an error of the command line."""

_LISTEN = ("--listen", *LOOPBACK_LISTEN)
_WORKER = (*_LISTEN, "--threads", "1", "--json")

_CHEAT_PROGRAM = "p2prl.testing.cheating_volunteer"
"""Started by module name and never imported, so product code contains no way to cheat."""

_LEAVE_S = 20.0
"""Time for workers to learn that the run has ended and to exit on their own."""

_STEP_S = 0.1
"""How often a process that is to end is looked at."""

_LISTED_S = 60.0
"""How long the index may take to show the run: the learner lists it as soon as it is up."""

_LOG_END_BYTES = 8192
"""End of a log in which the reason of a process's end is looked for."""


@dataclass(slots=True)
class RoleProcess:
    """One role's process and its output folder."""

    name: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    home: Path | None = None
    stays: bool = False
    """Whether it goes on when the run has ended."""

    @property
    def samples(self) -> bool:
        """Whether it is a volunteer or a cheat."""
        return self.name.startswith(("volunteer-", "cheat-"))

    def reason(self) -> str:
        """Why the process ended, by its log: the newest error, or else the last line."""
        with Path(self.log.name).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_END_BYTES))
            lines = [line for line in log.read().decode(errors="replace").splitlines() if line.strip()]
        errors = [line.partition(_ERROR)[2] for line in lines if line.startswith(_ERROR)]
        return cleaned((errors or lines or ["its log is empty"])[-1].strip())

    def url(self) -> str:
        """The first web address that its log names; empty before it does."""
        found = re.search(r"https?://\S+", Path(self.log.name).read_text(errors="replace"))
        return found[0].rstrip("/") if found else ""

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
    _told: set[str] = field(default_factory=set)
    """Processes whose end was told."""
    _hurried: bool = False
    """Whether the user asked a second time for the end."""

    def start_all(
        self, *, volunteers: int, cheats: int, owner: str = "", tell: Callable[[str], None] = lambda _: None
    ) -> RoleProcess:
        """Start the learner, and the others when it has written its join link. Returns the learner.

        With an `owner`, the peer id of the run's, an index is started first: the learner lists its run and board
        there, the volunteers find it, and its ledger counts. `tell` gets each step as it begins.
        """
        index, listed, board_port = "", bool(owner), "0"
        listing: tuple[str, ...] = ()
        if listed:
            tell("starting the index")
            serve = ("index", "serve", "--listen", "127.0.0.1:0", "--count", owner)
            index = self._url_of(self._start("index", "p2prl", *serve, own_home=True, stays=True))
            board_port = str(free_port())  # the listing names the board before it is up
            listing = ("--list", index, "--board", f"http://127.0.0.1:{board_port}")
        tell("starting the learner")
        learner = self._start("learner", "p2prl", "learn", str(self.folder), *_LISTEN, *listing)
        link = self._await_link(learner)
        found_by: tuple[str, ...] = (link,)
        if listed:
            tell("waiting until the index lists the run")
            self._await_listing(learner, index)
            found_by = ("--any", "--index", index)
        tell("starting the others")
        for number in range(1, volunteers + 1):
            name = f"volunteer-{number}"
            self._start(name, "p2prl", "join", *found_by, *_WORKER, own_home=True, stays=listed)
        for number in range(1, cheats + 1):
            self._start(f"cheat-{number}", _CHEAT_PROGRAM, link, *_WORKER, own_home=True)
        self._start("validator", "p2prl", "validate", link, *_WORKER, own_home=True)
        self._start("board", "p2prl", "board", str(self.folder), "--port", board_port, stays=True)
        return learner

    def urls(self) -> dict[str, str]:
        """Addresses of the pages that are served, by role, once they are."""
        return {role.name: self._url_of(role) for role in self.roles if role.name in ("index", "board")}

    @contextmanager
    def stopped_at_end(self) -> Iterator[DemoProcesses]:
        """At the end of this block, interrupt the processes still running, then kill those that do not exit in time.

        SIGTERM and a closed terminal end the block as Ctrl-C does. Another signal kills what is left at once.
        """
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            numbers.append(signal.SIGHUP)
        previous = {number: signal.signal(number, self._interrupt) for number in numbers}
        try:
            yield self
        finally:
            for number in numbers:
                signal.signal(number, self._hurry)
            self._stop()
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    def _hurry(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._hurried = True

    def _stop(self) -> None:
        alive = [role for role in self.roles if role.process.poll() is None]
        for role in alive:
            role.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _LEAVE_S
        while not self._hurried and time.monotonic() < deadline and any(role.process.poll() is None for role in alive):
            time.sleep(_STEP_S)
        for role in alive:
            if role.process.poll() is None:
                os.killpg(role.process.pid, signal.SIGKILL)
                role.process.wait()
        for role in self.roles:
            role.log.close()

    def ended_early(self) -> list[str]:
        """A sentence on each process that has ended before the run, but for the learner; each is told once.

        `MachineError` when no process is left that samples, because the learner would wait without end.
        """
        ended = [role for role in self.roles if role.process.poll() not in (None, RUN_FINISHED)]
        news = [role for role in ended if role.name not in {"learner", *self._told}]
        self._told |= {role.name for role in news}
        samplers = [role for role in self.roles if role.samples]
        if samplers and all(role in ended for role in samplers):
            raise self._failure(samplers[-1], also=len(samplers) - 1)
        return [f"{role.name} has ended with status {role.process.returncode}: {role.reason()}" for role in news]

    def check_ended_well(self, learner: RoleProcess) -> None:
        """Raise `MachineError` when the learner, which has ended, failed."""
        if learner.process.returncode != 0:
            raise self._failure(learner)

    def _failure(self, role: RoleProcess, *, also: int = 0) -> MachineError:
        others = f", and {counted(also, 'process', 'processes')} that sampled beside it" if also else ""
        return MachineError(
            f"{role.name} has ended with status {role.process.returncode}{others}: {role.reason()}",
            remedy=f"{self._log_path(role.name)} has what it said before. p2prl doctor checks this machine.",
        )

    def await_workers(self) -> None:
        """After the learner is done, give the workers time to learn of it and exit."""
        deadline = time.monotonic() + _LEAVE_S
        for role in self.roles:
            if not role.stays:
                try:
                    role.process.wait(timeout=max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    continue

    def _start(
        self, name: str, module: str, *arguments: str, own_home: bool = False, stays: bool = False
    ) -> RoleProcess:
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
        role = RoleProcess(name, process, log, home, stays)
        self.roles.append(role)
        return role

    def _await_link(self, learner: RoleProcess) -> str:
        path = self.folder / "link"
        self._await(path.exists, learner)
        return path.read_text().strip()

    def _url_of(self, role: RoleProcess) -> str:
        self._await(role.url, role)
        return role.url()

    def _await_listing(self, learner: RoleProcess, index: str) -> None:
        finder, deadline = RunFinder((index,)), time.monotonic() + _LISTED_S

        def is_over() -> bool:
            return bool(finder.look(now=time.time()).listings) or time.monotonic() > deadline

        self._await(is_over, learner)
        if time.monotonic() > deadline:
            raise UnreachableError(
                f"{index} lists no run after {_LISTED_S:.0f} s; the learner says: {learner.reason()}",
                remedy=f"{self._log_path('index')} has what the index says.",
            )

    def _await(self, condition: Callable[[], object], role: RoleProcess) -> None:
        """Wait for what `role` is to do. `MachineError` with its reason when it ends before that."""
        while not condition():
            if role.process.poll() is not None:
                raise self._failure(role)
            time.sleep(_STEP_S)

    def _log_path(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"
