"""The pool's side of its fork server: start it clean, have it fork and end workers, start it again when it dies."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from p2prl import errors
from p2prl.confinement.children import Launch
from p2prl.tasks.sandbox import frames
from p2prl.tasks.sandbox.fork_server_main import COMMAND, END, FORK, FORK_ONCE
from p2prl.tasks.sandbox.program import scorer_program
from p2prl.tasks.sandbox.worker_process import WorkerProcess, receive_exactly

BUILD_S = 120
"""Longest time to import and build the scorers of a run, seconds: large packages on a slow disk take tens of them."""

MAX_RESTARTS, RESTART_WINDOW_S = 10, 600.0
"""Restarts of the fork server within this time before calls fail: it scores no answer, so more would not help."""

_CLOSE_S = 5.0
"""How long the fork server may take to end its workers and itself; then it is killed."""


@dataclass(frozen=True, kw_only=True)
class ForkServerSettings:
    """Settings for a fork server."""

    tasks: Mapping[str, tuple[str, str | None]]
    """Scoring of each task, and the path of its code."""
    builder: str
    """Module with `build_scorer` and `runs_third_party_code`."""
    memory_bytes: int
    limit_s: float
    build_s: int = BUILD_S
    require_layers: bool = False
    """Refuse third-party code, before it is imported, on a system that cannot confine it."""


class RestartBudget:
    """Restarts that remain: a fixed number in any window. Those of a long run do not pile up."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Count a restart at `now` (seconds, any origin); False, uncounted, when it is one too many."""
        while self._times and now - self._times[0] >= RESTART_WINDOW_S:
            self._times.popleft()
        if len(self._times) >= MAX_RESTARTS:
            return False
        self._times.append(now)
        return True


class ForkServer:
    """A fork server, and numbers for its workers. Any thread may use it."""

    def __init__(self, settings: ForkServerSettings, launch: Launch | None = None) -> None:
        """`launch` starts the process, where this one may start none.

        `ConfigError` when a scorer cannot be built, `MachineError` when the process does not start.
        """
        self._settings = settings
        self._launch = launch or scorer_program(os.getpid()).start
        self._lock = threading.Lock()
        self._next = 0
        self._restarts = RestartBudget()
        self._closed = False
        self.third_party: frozenset[str] = frozenset()
        self.layers: tuple[str, ...] = ()
        self._start()

    @property
    def pid(self) -> int:
        """Process id of the fork server."""
        return self._process.pid

    def fork(self, *, once: bool) -> WorkerProcess:
        """A new worker, perhaps not ready yet; `once` for a single answer. `MachineError` when none can be had."""
        with self._lock:
            while not self._closed:
                ours, theirs = _socket_pair()
                self._next += 1
                command = COMMAND.pack(FORK_ONCE if once else FORK, self._next)
                try:
                    socket.send_fds(self._control, [command], [theirs.fileno()])
                except OSError:
                    ours.close()
                    self._restart()
                else:
                    return WorkerProcess(ours, number=self._next, server=self._process, once=once)
                finally:
                    theirs.close()
        raise errors.LocalProtocolError("the scorer pool is closed")

    def end(self, worker: WorkerProcess) -> None:
        """Kill a worker. One of an earlier fork server ended with it."""
        worker.hang_up()
        with self._lock:
            if self._closed or worker.server != self._process.pid:
                return
            try:
                self._control.sendall(COMMAND.pack(END, worker.number))
            except OSError:
                self._restart()

    def close(self) -> None:
        """End the fork server and its workers."""
        with self._lock:
            self._closed = True
            self._stop()

    def _restart(self) -> None:
        self._stop()
        if not self._restarts.spend(time.monotonic()):
            raise errors.MachineError(
                f"the scorers' process ended {MAX_RESTARTS} times within {RESTART_WINDOW_S / 60:.0f} minutes",
                remedy="Look for messages about memory in the system's log; then start again.",
            )
        self._start()

    def _start(self) -> None:
        self._control, theirs = _socket_pair()
        try:
            self._process = self._launch(theirs.fileno())
        except OSError as error:
            self._control.close()
            raise _exhausted(error) from error
        finally:
            theirs.close()
        try:
            self._read_state()
        except BaseException:
            self._stop()
            raise

    def _read_state(self) -> None:
        s = self._settings
        settings = {"tasks": dict(s.tasks), "builder": s.builder, "memory_bytes": s.memory_bytes}
        settings |= {"limit_s": s.limit_s, "build_s": s.build_s, "require_layers": s.require_layers}
        until = time.monotonic() + s.build_s + _CLOSE_S
        try:
            self._control.sendall(frames.frame(frames.json_bytes(settings)))
            header = receive_exactly(self._control, frames.HEADER_BYTES, until=until)
            state = frames.json_document(receive_exactly(self._control, frames.payload_bytes(header), until=until))
        except OSError as error:
            self._stop()
            raise errors.MachineError(
                f"the scorers' process ended before its scorers were built ({self._process.returncode}), "
                f"or building took over {s.build_s} s",
                remedy="Check that the scorer imports quickly and needs no network.",
            ) from error
        assert isinstance(state, dict)
        if "error" in state:
            raise errors.ConfigError(
                f"a scorer could not be built: {state['error']}",
                remedy=state["remedy"] or "Install the package it names, or correct the task's scoring.",
            )
        self._control.settimeout(_CLOSE_S)
        self.third_party, self.layers = frozenset(state["third_party"]), tuple(state["layers"])

    def _stop(self) -> None:
        """End the process, its session, and what left the session; nothing when that is done."""
        if self._process.returncode is not None:
            self._control.close()
            return
        self._process.remember_family()
        self._wait_for_end()
        self._control.close()
        self._process.end_family()

    def _wait_for_end(self) -> None:
        """Tell the process to end, and wait until it has hung up."""
        until = time.monotonic() + _CLOSE_S
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_WR)
            while (left := until - time.monotonic()) > 0:
                self._control.settimeout(left)
                if not self._control.recv(1 << 16):
                    return


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    try:
        return socket.socketpair()
    except OSError as error:
        raise _exhausted(error) from error


def _exhausted(error: OSError) -> errors.MachineError:
    return errors.MachineError(
        f"a process that scores answers cannot be started: {error.strerror}",
        remedy="Check that memory, processes and open files are left on this machine (ulimit -a).",
    )
