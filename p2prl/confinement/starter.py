"""The starter: a process that starts others for a role which, once confined, can start none itself.

It is forked before the role imports anything large, knows a fixed table of programs, and reads nothing of a stranger:
a command is a number of the table with a descriptor for the new process. It ends what it started, or lets it end by
itself, when the role is gone.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from p2prl.confinement.children import Child, Launch, LocalChild, Program

_COMMAND = struct.Struct("<cBQi")
"""A letter, a place in the table of programs, the number of the process among those of the role, and the id of one
below that process."""

_START, _KILL, _LOWER, _REMEMBER, _END = b"S", b"K", b"L", b"R", b"E"

_REPORT = struct.Struct("<cQi")
"""A letter, the number of the process, and its id, its exit status or an errno."""

_STARTED, _FAILED, _ENDED = b"s", b"f", b"e"

_POLL_S = 0.2
"""A thread that waits lets others read reports this often."""

_LEAVE_S = 15.0
"""How long processes may take to end once their role is gone: the network process sends its last messages."""

_START_S = 30.0
"""How long the start of a process may take on a busy machine."""


class Starter:
    """A role's side of its starter. Any thread may use it."""

    def __init__(self, programs: Mapping[str, Program], *, at_end: Callable[[], None] = lambda: None) -> None:
        """Fork the starter. Call it with one thread, before anything is confined.

        It calls `at_end` when the role is gone and the processes have ended or been killed.
        """
        self._places = {name: place for place, name in enumerate(programs)}
        self._lock = threading.Lock()
        self._last = 0
        self._started: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._left = b""
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            try:
                ours.close()
                _Server(theirs, list(programs.values())).serve()
                at_end()
            finally:
                os._exit(0)
        theirs.close()
        self._control = ours

    def launch(self, name: str) -> Launch:
        """Starts a program of the table."""
        place = self._places[name]

        def start(descriptor: int) -> Child:
            with self._lock:
                self._last += 1
                number = self._last
                socket.send_fds(self._control, [_COMMAND.pack(_START, place, number, 0)], [descriptor])
            pid = self._await(self._started, number, _START_S)
            if pid is None or pid < 0:
                code = -(pid or 0)
                raise OSError(code, os.strerror(code) if code else "the starter does not answer")
            return StartedChild(self, number, pid)

        return start

    def command(self, letter: bytes, number: int, pid: int = 0) -> None:
        """Send a command about a process; nothing when the starter is gone."""
        with self._lock, suppress(OSError):
            self._control.sendall(_COMMAND.pack(letter, 0, number, pid))

    def wait_end(self, number: int, timeout_s: float | None) -> int | None:
        """Exit status of a process; None when it takes longer."""
        return self._await(self._ended, number, timeout_s)

    def close(self) -> None:
        """Hang up: the starter ends."""
        self._control.close()

    def _await(self, table: dict[int, int], number: int, timeout_s: float | None) -> int | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._lock:
                if number in table:
                    return table[number]
                left = _POLL_S if until is None else min(_POLL_S, until - time.monotonic())
                if left <= 0 or not self._read(left):
                    return table.get(number)

    def _read(self, timeout_s: float) -> bool:
        """Take the reports that are there; False when the starter is gone."""
        if not select.select([self._control], [], [], timeout_s)[0]:
            return True
        data = self._control.recv(1 << 12)
        self._left += data
        while len(self._left) >= _REPORT.size:
            letter, number, value = _REPORT.unpack_from(self._left)
            self._left = self._left[_REPORT.size :]
            if letter == _ENDED:
                self._ended[number] = value
            else:
                self._started[number] = value if letter == _STARTED else -value
        return bool(data)


class StartedChild:
    """A process that the starter started."""

    def __init__(self, starter: Starter, number: int, pid: int) -> None:
        self._starter = starter
        self._number = number
        self._code: int | None = None
        self.pid = pid

    @property
    def returncode(self) -> int | None:
        """See `Child`."""
        return self._code

    def wait(self, timeout_s: float | None = None) -> int:
        """See `Child`."""
        if self._code is None:
            self._code = self._starter.wait_end(self._number, timeout_s)
        if self._code is None:
            raise TimeoutError(f"process {self.pid} goes on")
        return self._code

    def kill(self) -> None:
        """See `Child`."""
        self._starter.command(_KILL, self._number)

    def lower_priority(self, pid: int) -> None:
        """See `Child`."""
        self._starter.command(_LOWER, self._number, pid)

    def remember_family(self) -> None:
        """See `Child`."""
        self._starter.command(_REMEMBER, self._number)

    def end_family(self) -> None:
        """See `Child`."""
        self._starter.command(_END, self._number)
        self.wait()


class _Server:
    """The starter itself."""

    def __init__(self, control: socket.socket, programs: list[Program]) -> None:
        self._control = control
        self._programs = programs
        self._children: dict[int, LocalChild] = {}

    def serve(self) -> None:
        """Obey until the role is gone. Signals of the terminal are the role's to handle."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if woken in ready:
                os.read(woken, 1 << 10)
                self._report_ends()
            if self._control.fileno() in ready and not self._obey():
                break
        self._control.close()
        self._end_all()

    def _end_all(self) -> None:
        """Processes end by themselves when their role is gone; those that do not are killed."""
        until = time.monotonic() + _LEAVE_S
        for child in self._children.values():
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except TimeoutError:
                child.remember_family()
                child.end_family()

    def _obey(self) -> bool:
        """Read and obey one command; False when the role has hung up."""
        try:
            data, descriptors, _flags, _address = socket.recv_fds(self._control, _COMMAND.size, 1)
        except OSError:
            return False
        if len(data) < _COMMAND.size:
            return False
        letter, place, number, pid = _COMMAND.unpack(data)
        if letter == _START and descriptors:
            self._start(place, number, descriptors[0])
        elif (child := self._children.get(number)) is not None:
            if letter == _KILL:
                child.kill()
            elif letter == _LOWER:
                child.lower_priority(pid)
            elif letter == _REMEMBER:
                child.remember_family()
            elif letter == _END:
                child.end_family()
                self._report_ends()
        return True

    def _start(self, place: int, number: int, descriptor: int) -> None:
        try:
            child = self._programs[place].start(descriptor)
        except OSError as error:
            self._report(_FAILED, number, error.errno or 1)
        else:
            self._children[number] = child
            self._report(_STARTED, number, child.pid)
        finally:
            os.close(descriptor)

    def _report_ends(self) -> None:
        for number, child in list(self._children.items()):
            with suppress(TimeoutError):
                code = child.wait(0)
                del self._children[number]
                self._report(_ENDED, number, code)

    def _report(self, letter: bytes, number: int, value: int) -> None:
        with suppress(OSError):
            self._control.sendall(_REPORT.pack(letter, number, value))
