"""Start roles by forking a process that has imported the program already: a swarm starts in a second, not in minutes.

Importing torch and transformers costs a process 5 to 10 s of a core. A fork runs `python -m p2prl ARGUMENTS…` from
there: an own session, environment, working folder and output, nothing shared but memory pages. What it cannot show is
in `/proc`: the command line and the first environment of a fork are those of the process it came from.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import gc
import json
import os
import resource
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

HEAVY = (
    "p2prl.cli.entry",
    "p2prl.cli.commands.board",
    "p2prl.cli.commands.init",
    "p2prl.cli.commands.join_worker",
    "p2prl.cli.commands.learn",
    "p2prl.cli.commands.validate_worker",
    "p2prl.models.engines.transformers.scorer",
    "p2prl.ranks.follower",
    "transformers.modeling_utils",
)
"""Imported before the first fork: they import the rest."""

_REQUEST_BYTES = 1 << 20
_MOST_DESCRIPTORS = 8

_SERVER = "P2PRL_TEST_FORKS"
"""Variable that tells a fork the address to ask for other forks."""


class ForkedRole:
    """A running fork, with the part of `subprocess.Popen` that the swarms use."""

    def __init__(self, line: socket.socket, pid: int, arguments: tuple[str, ...]) -> None:
        self.pid = pid
        self.args = arguments
        self.returncode: int | None = None
        self._line = line

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs."""
        return self._read(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its exit status; `subprocess.TimeoutExpired` after `timeout` seconds."""
        status = self._read(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal if it is running."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _read(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], timeout)[0]:
            self.returncode = int(_receive(self._line)["status"])
            self._line.close()
        return self.returncode


def start_fork(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    output: int,
    errors: int | None = None,
    *,
    file_limit: int | None = None,
    first: Path | None = None,
    module: str = "p2prl",
) -> ForkedRole:
    """Run `p2prl ARGUMENTS…`, or `python -m MODULE ARGUMENTS…`, in a fork.

    `output` and `errors` are descriptors for what it prints, both to `output` if `errors` is None. `file_limit` is the
    largest file it may write, bytes. `first` is a program to run before, which may replace parts of modules.
    """
    descriptors = {1: output, 2: output if errors is None else errors}
    request = {"env": dict(environment), "file_limit": file_limit, "first": str(first or "")}
    return ForkedRole(*_asked(descriptors, module=module, argv=list(arguments), **request), tuple(arguments))


def _asked(descriptors: Mapping[int, int], **request: Any) -> tuple[socket.socket, int]:
    """Ask for a fork that has descriptors of this process, each under the number given. Returns its line and id."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(_server())
    request |= {"cwd": os.getcwd(), "numbers": list(descriptors)}
    socket.send_fds(line, [json.dumps(request).encode()], list(descriptors.values()))
    return line, int(_receive(line)["pid"])


class ForkedProgram(ForkedRole):
    """A fork in the place of `subprocess.Popen([sys.executable, "-m", MODULE, ARGUMENTS…])`, with pipes."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        stdin: int,
        stdout: int,
        pass_fds: Collection[int] = (),
        start_new_session: bool = True,
    ) -> None:
        """Start it. It always has a session of its own, and inherits the standard error."""
        assert start_new_session
        assert tuple(command[:2]) == (sys.executable, "-m")
        assert stdin == subprocess.PIPE
        theirs, mine = os.pipe()
        self.stdin: IO[bytes] = os.fdopen(mine, "wb")
        self.stdout: IO[bytes] | None = None
        if stdout == subprocess.PIPE:
            mine, output = os.pipe()
            self.stdout = os.fdopen(mine, "rb")
        else:
            assert stdout == subprocess.DEVNULL
            output = os.open(os.devnull, os.O_WRONLY)
        descriptors = {0: theirs, 1: output, 2: 2} | {number: number for number in pass_fds}
        request = {"env": dict(os.environ), "file_limit": None, "first": ""}
        super().__init__(*_asked(descriptors, module=command[2], argv=list(command[3:]), **request), tuple(command))
        os.close(theirs)
        os.close(output)

    def __enter__(self) -> ForkedProgram:
        return self

    def __exit__(self, *error: object) -> None:
        for file in (self.stdin, self.stdout):
            if file is not None:
                file.close()
        self.wait()


FORKING = SimpleNamespace(**vars(subprocess) | {"Popen": ForkedProgram})
"""The module `subprocess`, whose programs are forks: for a module whose programs import torch."""


def run_fork(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout_s: float,
    file_limit: int | None = None,
    module: str = "p2prl",
) -> subprocess.CompletedProcess[str]:
    """Run `p2prl ARGUMENTS…`, or `python -m MODULE ARGUMENTS…`, in a fork to its end.

    `subprocess.TimeoutExpired`, and its end, after `timeout_s`.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        role = start_fork(
            arguments, environment, output.fileno(), errors.fileno(), file_limit=file_limit, module=module
        )
        try:
            status = role.wait(timeout_s)
        finally:
            role.kill()
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(list(arguments), status, *texts)


@functools.cache
def _server() -> str:
    """The address of this process's server, started at the first call; a fork uses that which it came from."""
    if _SERVER in os.environ:
        return "\0" + os.environ[_SERVER]
    address = f"\0p2prl-forks-{os.getpid()}-{os.urandom(8).hex()}"
    own, theirs = socket.socketpair()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "p2prl_lab.testing.forked_roles", address[1:], str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env=environment,
    )
    theirs.close()
    assert own.recv(1) == b"!", "the process to fork from did not start"

    def end() -> None:
        own.close()
        process.wait()

    atexit.register(end)
    return address


def _receive(line: socket.socket) -> dict[str, Any]:
    data = line.recv(_REQUEST_BYTES)
    if not data:
        raise ConnectionError("the process to fork from has ended")
    answer: dict[str, Any] = json.loads(data)
    return answer


def serve(address: str, owner: int) -> None:
    """Fork for every request until the process at the other end of the descriptor `owner` ends."""
    for name in HEAVY:
        __import__(name)
    gc.collect()
    gc.freeze()
    assert threading.active_count() == 1
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a thread would be missing in forks"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + address)
    listener.listen(64)
    os.write(owner, b"!")
    watched = selectors.DefaultSelector()
    watched.register(listener, selectors.EVENT_READ)
    watched.register(owner, selectors.EVENT_READ)
    while True:
        for key, _ in watched.select():
            if key.fd == owner:
                return
            if key.fileobj is listener:
                line, _ = listener.accept()
                pid, ended = _fork(line, address)
                watched.register(ended, selectors.EVENT_READ, (pid, line))
            else:
                pid, line = key.data
                watched.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(pid, 0)
                with line:
                    _answer(line, status=os.waitstatus_to_exitcode(status))


def _answer(line: socket.socket, **facts: int) -> None:
    with contextlib.suppress(OSError):  # it no longer cares
        line.send(json.dumps(facts).encode())


def _fork(line: socket.socket, server: str) -> tuple[int, int]:
    """Fork for the request on `line`, and tell it where the server is.

    Returns the child's process id and a descriptor that is readable at its end.
    """
    data, descriptors, _, _ = socket.recv_fds(line, _REQUEST_BYTES, _MOST_DESCRIPTORS)
    pid = os.fork()
    if pid == 0:
        _become(json.loads(data) | {"server": server}, descriptors)
    for descriptor in descriptors:
        os.close(descriptor)
    _answer(line, pid=pid)
    return pid, os.pidfd_open(pid)


def _become(request: dict[str, Any], descriptors: Sequence[int]) -> NoReturn:
    """Run the program in this fork, and exit with its status."""
    status = 1
    try:
        os.setsid()
        _keep(dict(zip(request["numbers"], descriptors, strict=True)))
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"] | {_SERVER: request["server"]})
        tempfile.tempdir = None  # TMPDIR may differ
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
        if request["file_limit"] is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (request["file_limit"], request["file_limit"]))
        if request["first"]:
            runpy.run_path(request["first"])
        sys.argv = [request["module"], *request["argv"]]
        try:
            runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _keep(descriptors: Mapping[int, int]) -> None:
    """Give each descriptor its number, and close all others beyond the standard three."""
    above = max(descriptors) + 1
    apart = {number: fcntl.fcntl(held, fcntl.F_DUPFD, above) for number, held in descriptors.items()}
    for number, held in apart.items():
        os.dup2(held, number)
    last = 2
    for number in (*sorted(set(descriptors) - {0, 1, 2}), resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        os.closerange(last + 1, number)
        last = number


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
