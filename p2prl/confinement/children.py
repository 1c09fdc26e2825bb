"""Child processes as their owners see them, and how one is started: by this process, or by its starter."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import psutil

_LOWER_BY = 10
"""Niceness added to a process that takes long: on a busy core the quick answers of others keep nine tenths."""


class Child(Protocol):
    """A process that was started for its owner. Its id stays its own until it is waited for."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs or nobody has waited for it."""
        ...

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end; return the exit status. `TimeoutError` when it takes longer."""
        ...

    def kill(self) -> None:
        """Kill it, if it runs."""
        ...

    def lower_priority(self, pid: int) -> None:
        """Have a process below it leave a busy processor to others, for good; no other process is touched.

        A confined role may not do so itself. `pid` is not collected yet, so it is no other process's by now.
        """
        ...

    def remember_family(self) -> None:
        """Note every process below it, for `end_family`."""
        ...

    def end_family(self) -> None:
        """Kill it, its session and what `remember_family` noted, and wait for it."""
        ...


Launch = Callable[[int], Child]
"""Starts a process that inherits one descriptor and gets its number as an argument. `OSError` when none starts."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program to start, for one descriptor at a time."""

    command: Sequence[str]
    """Arguments before the descriptor's number."""
    environment: Mapping[str, str] | None = None
    """The whole environment; None for this process's own."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Variables besides."""
    folder: str | None = None
    """Working folder; None for this process's own."""
    silent: bool = False
    """Whether its output is dropped."""

    def start(self, descriptor: int) -> LocalChild:
        """Start it in a session of its own, so that Ctrl-C in the terminal does not reach it."""
        environment = dict(os.environ if self.environment is None else self.environment) | dict(self.extra)
        output = subprocess.DEVNULL if self.silent else None
        return LocalChild(
            subprocess.Popen(
                [*self.command, str(descriptor)],
                pass_fds=[descriptor],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )
        )


class LocalChild:
    """A child of this process."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._family: list[psutil.Process] = []

    @property
    def pid(self) -> int:
        """See `Child`."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """See `Child`."""
        return self._process.returncode

    def wait(self, timeout_s: float | None = None) -> int:
        """See `Child`."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"process {self.pid} goes on") from error

    def kill(self) -> None:
        """See `Child`."""
        self._process.kill()

    def lower_priority(self, pid: int) -> None:
        """See `Child`."""
        with suppress(psutil.Error, OSError):
            if all(parent.pid != self.pid for parent in psutil.Process(pid).parents()):
                return
            os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, 0) + _LOWER_BY)
            if sys.platform == "linux" and os.getsid(pid) == pid:  # the kernel's autogroups weigh sessions
                Path(f"/proc/{pid}/autogroup").write_text(str(_LOWER_BY))

    def remember_family(self) -> None:
        """See `Child`."""
        with suppress(psutil.Error):
            self._family = psutil.Process(self.pid).children(recursive=True)

    def end_family(self) -> None:
        """See `Child`."""
        # Not collected yet, so its id is nobody else's.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for process in self._family:
            with suppress(psutil.Error):
                process.kill()  # checks that the id is still this process's
