"""The fork server: confines itself, builds a run's scorers once, then forks a worker for each request of its pool.

It never sees a stranger's text, so it can be trusted to end what it started. Workers start in milliseconds, because
interpreter, packages and scorers are in memory already.

Started by `p2prl.tasks.sandbox.fork_server` with a control socket, over which it gets one `COMMAND` at a time. It ends,
and its workers with it, when the socket is closed or its parent is gone.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from p2prl.confinement.layers import NEEDED_LAYERS, address_space_meter, child_list
from p2prl.errors import ConfigError, P2PRLError
from p2prl.tasks.row_scorer import RowScorer
from p2prl.tasks.sandbox import frames
from p2prl.tasks.sandbox.confinement import Confinement, confine_fork_server
from p2prl.tasks.sandbox.worker_main import Scorers, prepare_fork, run_worker

COMMAND = struct.Struct("<cQ")
"""A command: one letter and a worker's number. A fork comes with the worker's end of a socket pair."""

FORK, FORK_ONCE, END = b"F", b"O", b"E"

_PARENT_CHECK_MS = 1000
"""How often the parent is looked for: a copy of its socket in another child of it would hide its end."""

_MAX_ROUNDS = 1000
"""Rounds of killing what a module started: a chain of processes takes one each, and there must be an end."""

_MAX_REPORT_CHARS = 2_000
"""Text of an error while building, for the researcher to read."""


class _ForkServer:
    """The running fork server: its workers by number."""

    def __init__(self, control: socket.socket, settings: dict[str, Any], scorers: Scorers, layers: Confinement) -> None:
        self._control = control
        self._settings = settings
        self._scorers = scorers
        self._confinement = layers
        self._workers: dict[int, int] = {}
        self._parent = os.getppid()

    def serve(self) -> None:
        """Obey until the pool is gone, then end every worker."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        try:
            while os.getppid() == self._parent:
                if poll.poll(_PARENT_CHECK_MS) and not self._obey():
                    break
        finally:
            for number in list(self._workers):
                self._end(number)

    def _obey(self) -> bool:
        """Read and obey one command; False when the pool has hung up."""
        data, descriptors, _flags, _address = socket.recv_fds(self._control, COMMAND.size, 1)
        while data and len(data) < COMMAND.size:
            rest = self._control.recv(COMMAND.size - len(data))
            data = data + rest if rest else b""
        if not data:
            return False
        letter, number = COMMAND.unpack(data)
        if letter == END:
            self._end(number)
        elif descriptors:  # none where this process may open no more: the pool then reads the end of its socket
            self._fork(number, descriptors[0], once=letter == FORK_ONCE)
        return True

    def _fork(self, number: int, descriptor: int, *, once: bool) -> None:
        server = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no process or memory is left: hang up, so that the pool tries again or gives up
            os.close(descriptor)
            return
        if pid == 0:
            try:
                ruleset = self._confinement.worker_ruleset
                prepare_fork(server, (descriptor, ruleset) if ruleset >= 0 else (descriptor,), once=once)
                run_worker(
                    descriptor,
                    self._scorers,
                    self._confinement,
                    memory_bytes=self._settings["memory_bytes"],
                    limit_s=self._settings["limit_s"],
                    once=once,
                )
            finally:
                os._exit(1)
        os.close(descriptor)
        self._workers[number] = pid

    def _end(self, number: int) -> None:
        """Kill a worker and collect it. Not collected before, so its process id cannot be another process's."""
        pid = self._workers.pop(number, None)
        if pid is not None:
            _kill(pid)


def _kill(child: int) -> None:
    with suppress(OSError):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def end_children(children: Callable[[], list[int]]) -> None:
    """Kill what is left: processes that a scorer's module started. Their own children become ours, round by round."""
    for _ in range(_MAX_ROUNDS):
        left = children()
        if not left:
            return
        for pid in left:
            _kill(pid)


def require_layers(builder: Any, tasks: Mapping[str, tuple[str, str | None]], layers: Collection[str]) -> None:
    """`ConfigError` when a task's scorer is third-party code and this system cannot confine it."""
    missing = [layer for layer in NEEDED_LAYERS if layer not in layers]
    for task, (spec, _code) in tasks.items():
        if missing and builder.runs_third_party_code(spec):
            raise ConfigError(
                f"task {task!r}: third-party code scores it, and this system cannot confine that code: no "
                + " and no ".join(missing),
                remedy="Use Linux 5.13 or later with Landlock and seccomp, or leave out --run-scorer.",
            )


def build_scorers(builder: Any, tasks: Mapping[str, tuple[str, str | None]]) -> Scorers:
    """Scorers of every task from its spec and code. `ConfigError` names the task that fails."""
    built: dict[str, RowScorer] = {}
    third_party = set()
    for task, (spec, code) in tasks.items():
        try:
            built[task] = builder.build_scorer(spec, None if code is None else Path(code))
            if builder.runs_third_party_code(spec):
                third_party.add(task)
        except Exception as error:
            known = isinstance(error, P2PRLError)
            problem = str(error) if known else f"{type(error).__name__}: {error}"
            raise ConfigError(f"task {task!r}: {problem}", remedy=getattr(error, "remedy", "")) from error
    return Scorers(built, frozenset(third_party))


def main() -> None:
    """Run the fork server on the control socket whose descriptor is the last argument."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=int(sys.argv[-1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the pool's process, which then closes the socket
    warnings.simplefilter("ignore")
    with control.makefile("rb") as stream:
        settings: Any = frames.json_document(stream.read(frames.payload_bytes(stream.read(frames.HEADER_BYTES))))
    children = child_list()
    signal.alarm(settings["build_s"])
    try:
        _build_and_serve(control, settings)
    finally:
        end_children(children)


def _build_and_serve(control: socket.socket, settings: dict[str, Any]) -> None:
    tasks = settings["tasks"]
    try:
        builder = importlib.import_module(settings["builder"])  # ours, perhaps from a folder that a scorer may not read
        codes = [Path(code) for _spec, code in tasks.values() if code is not None]
        if any(builder.runs_third_party_code(spec) for spec, _code in tasks.values()):
            prepare_plotting_library()
        address_space = address_space_meter()
        confinement = confine_fork_server(codes)
        if settings["require_layers"]:
            require_layers(builder, tasks, confinement.layers)
        scorers = build_scorers(builder, tasks)
        confinement = replace(confinement, address_space_bytes=address_space())
        state: dict[str, object] = {"third_party": sorted(scorers.third_party), "layers": confinement.layers}
    except Exception as error:  # noqa: BLE001  # a researcher's module may raise anything; the pool reports it
        text = str(error) if isinstance(error, P2PRLError) else f"{type(error).__name__}: {error}"
        report = {"error": text[:_MAX_REPORT_CHARS], "remedy": getattr(error, "remedy", "")[:_MAX_REPORT_CHARS]}
        control.sendall(frames.frame(frames.json_bytes(report)))
        return
    signal.alarm(0)
    gc.collect()
    gc.freeze()  # a worker's collector must not copy the pages that all of them share
    control.sendall(frames.frame(frames.json_bytes(state)))
    _ForkServer(control, settings, scorers, confinement).serve()


_FOLDER = "MPLCONFIGDIR"
"""Where matplotlib keeps settings and caches. Libraries of scorers import it, and without a folder that it may write it
refuses to be imported."""


def prepare_plotting_library() -> None:
    """Import matplotlib, where it is installed, with a folder that is gone afterwards. Before this process is confined.

    The library looks for its folder once and remembers the name; a folder that is gone later is one without settings.
    """
    with tempfile.TemporaryDirectory(prefix="p2prl-scorers-") as folder:
        os.environ[_FOLDER] = folder
        try:
            library = importlib.import_module("matplotlib")
            library.get_configdir()
            library.get_cachedir()
        except ImportError:
            return
        finally:
            del os.environ[_FOLDER]
