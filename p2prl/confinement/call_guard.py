"""The guard of a network process: connects Unix sockets in one folder alone, and signals its own children alone.

The kernel's filters cannot read the address of a `connect`, and Landlock does not limit Unix sockets by path. So a
network process and its daemon wait at each `connect`, `kill` and `uname` for their guard, the process they were forked
from (seccomp's user notification). It makes the call itself, on copies of the socket and the address, so that nothing
it has checked can be changed afterwards. Where the system does not allow that (before Linux 5.6, in some containers), a
network process works without a guard.

The guard reads at most 128 bytes of what it is asked, and nothing that a stranger sent.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from p2prl.confinement import linux
from p2prl.confinement.layers import succeeds

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
"""SECCOMP_IOCTL_NOTIF_RECV and SECCOMP_IOCTL_NOTIF_SEND."""

_STILL_WAITS = 0x80082102
"""SECCOMP_IOCTL_NOTIF_ID_VALID, as kernels before 5.17 know it and later ones do as well."""

_CALL = struct.Struct("<QIIiIQ6Q")
"""`struct seccomp_notif`: id, thread, flags; then number, architecture, instruction and arguments of the call."""

_ANSWER = struct.Struct("<QqiI")
"""`struct seccomp_notif_resp`: id, result, error, flags."""

_MOST_ADDRESS_BYTES = 128
"""`struct sockaddr_storage`, the longest that the kernel takes."""

_NAME_BYTES = 65
"""A field of `struct utsname`: system, node, release, version, machine, domain."""

_MEASURE = b"M"
_MEASURED = struct.Struct("<Q")

_MOST_DEPTH = 8
"""Generations between a guard and what it may signal: the network process, its daemon, and what that may start."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A call that waits for its guard."""

    call: int
    thread: int
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Guard:
    """The guarded process's side."""

    channel: socket.socket

    def hand_over(self, listener: int) -> None:
        """Give the guard the listener of this process's filter. It answers from now on."""
        try:
            socket.send_fds(self.channel, [b"L"], [listener])
        finally:
            os.close(listener)

    def children_bytes(self) -> int:
        """Memory of this process's children, which it may not read itself; 0 when the guard is gone."""
        try:
            self.channel.sendall(_MEASURE)
            return int(_MEASURED.unpack(self.channel.recv(_MEASURED.size, socket.MSG_WAITALL))[0])
        except (OSError, struct.error):
            return 0


def start_guard(folder: Path, connect: int, kill: int) -> Guard:
    """Fork: returns in the child alone, which is to be guarded. The parent becomes its guard and ends with its status.

    Call it with one thread. `folder` is where the child may connect Unix sockets; `connect` and `kill` are the numbers
    of these calls, and any other that is asked about is `uname`.
    """
    ours, theirs = socket.socketpair()
    # Of the guard itself, which needs no more; the child's own follow.
    linux.forbid_new_privileges()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        ours.close()
        linux.die_with_parent()
        if os.getppid() != parent:
            os._exit(1)
        return Guard(theirs)
    theirs.close()
    try:
        status = _Watch(ours, child, folder, connect, kill).serve()
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


class _Watch:
    """The guard at work."""

    def __init__(self, channel: socket.socket, child: int, folder: Path, connect: int, kill: int) -> None:
        self._channel = channel
        self._child = child
        self._folder = folder.resolve()
        self._answers: dict[int, Callable[[_Asked], int]] = {connect: self._connect, kill: self._kill}
        self._listener = -1

    def serve(self) -> int:
        """Answer until the child has ended; its wait status."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the child ends when its role hangs up
        self._keep_only(self._channel.fileno())
        ended = os.pidfd_open(self._child)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.register(self._channel, select.POLLIN)
        while True:
            for descriptor, events in poll.poll():
                if descriptor == ended:
                    return os.waitpid(self._child, 0)[1]
                if descriptor == self._listener:
                    if events & select.POLLIN:
                        self._answer()
                    else:
                        poll.unregister(descriptor)
                elif not self._obey(poll):
                    poll.unregister(descriptor)

    def _keep_only(self, *kept: int) -> None:
        """Close what the child inherited: a copy of its role's socket would hide its end."""
        lowest = 3
        for descriptor in sorted(kept):
            os.closerange(lowest, descriptor)
            lowest = descriptor + 1
        os.closerange(lowest, 1 << 16)

    def _obey(self, poll: select.poll) -> bool:
        """Read from the child; False when it has hung up."""
        with suppress(OSError):
            data, descriptors, _flags, _address = socket.recv_fds(self._channel, 1, 1)
            for descriptor in descriptors:
                if self._listener >= 0:
                    os.close(descriptor)  # it has one filter
                else:
                    self._listener = descriptor
                    poll.register(descriptor, select.POLLIN)
            if data == _MEASURE:
                self._channel.sendall(_MEASURED.pack(children_bytes(self._child)))
            return bool(data)
        return False

    def _answer(self) -> None:
        """Receive one call, make it, and answer."""
        asked = bytearray(_CALL.size)
        try:
            fcntl.ioctl(self._listener, _RECEIVE, asked)
        except OSError:
            return  # its thread is gone
        call, thread, _flags, number, _architecture, _instruction, *arguments = _CALL.unpack(asked)
        make, waiting = self._answers.get(number, self._uname), _Asked(call, thread, tuple(arguments))
        if make == self._connect and _may_wait(thread, arguments[0]):
            threading.Thread(target=self._reply, args=(make, waiting), daemon=True).start()
        else:
            self._reply(make, waiting)

    def _reply(self, make: Callable[[_Asked], int], asked: _Asked) -> None:
        try:
            code = make(asked)
        except OSError as error:
            code = error.errno or errno.EPERM
        except (ValueError, OverflowError):
            code = errno.EINVAL
        with suppress(OSError):
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(asked.call, 0, -code, 0))

    def _check_waits(self, asked: _Asked) -> None:
        """Raise OSError when the call is over. What was opened by the thread's number may then be another program's,
        which the number went to; while the call waits it is not."""
        fcntl.ioctl(self._listener, _STILL_WAITS, struct.pack("<Q", asked.call))

    def _connect(self, asked: _Asked) -> int:
        number, pointer, length = asked.arguments[:3]
        length &= 0xFFFFFFFF
        if length > _MOST_ADDRESS_BYTES:
            return errno.EINVAL
        address = _memory(asked.thread, pointer, length)
        descriptor = linux.descriptor_of(_process_of(asked.thread), number & 0xFFFFFFFF)
        try:
            self._check_waits(asked)
            if not _is_unix(descriptor):
                return linux.connect_socket(descriptor, address)
            return self._connect_unix(descriptor, address)
        finally:
            os.close(descriptor)

    def _connect_unix(self, descriptor: int, address: bytes) -> int:
        """Connect to a socket that lies in the folder, or in a folder of its own there; follows no link on the way."""
        path = Path(os.fsdecode(address[2:].split(b"\0")[0]))
        if not path.is_absolute() or path.parent.resolve() != path.parent or self._folder not in path.parents:
            return errno.EPERM
        found = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # What was opened is what is connected, wherever a name leads by now.
            if not stat.S_ISSOCK(os.fstat(found).st_mode) or self._folder not in Path(_opened(found)).parents:
                return errno.EPERM
            own = os.fsencode(f"/proc/self/fd/{found}")
            return linux.connect_socket(descriptor, struct.pack("<H", socket.AF_UNIX) + own + b"\0")
        finally:
            os.close(found)

    def _kill(self, asked: _Asked) -> int:
        target, number = (
            struct.unpack("<i", struct.pack("<I", value & 0xFFFFFFFF))[0] for value in asked.arguments[:2]
        )
        try:
            is_allowed = target > 0 and self._is_family(target)
        except (FileNotFoundError, ProcessLookupError):
            return errno.ESRCH  # it has ended, as without a guard
        if not is_allowed:
            return errno.EPERM
        os.kill(target, number)
        return 0

    def _is_family(self, pid: int) -> bool:
        """Whether a process is the child or descends from it."""
        for _ in range(_MOST_DEPTH):
            if pid in (self._child, 0):
                break
            pid = _number_in_status(pid, "PPid")
        return pid == self._child

    def _uname(self, asked: _Asked) -> int:
        """All about the system but the name of this machine."""
        known = os.uname()
        fields = (known.sysname, linux.HIDDEN_NAME.decode(), known.release, known.version, known.machine, "(none)")
        told = b"".join(field.encode()[: _NAME_BYTES - 1].ljust(_NAME_BYTES, b"\0") for field in fields)
        with Path(f"/proc/{asked.thread}/mem").open("r+b", buffering=0) as memory:
            self._check_waits(asked)
            memory.seek(asked.arguments[0])
            memory.write(told)
        return 0


def is_possible() -> bool:
    """Whether this system lets a parent take sockets of its child, which containers may forbid."""
    return sys.platform == "linux" and succeeds(_try)


def _try() -> None:
    opened = os.open(os.devnull, os.O_RDONLY)
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        os.close(linux.descriptor_of(child, opened))
        _memory(child, id(_CALL), 1)
    finally:
        os.close(opened)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _memory(thread: int, pointer: int, length: int) -> bytes:
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(pointer)
        return memory.read(length)


def _opened(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def _number_in_status(pid: int, name: str) -> int:
    """A number that the kernel tells about a process or thread."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.partition(":")[2]) for line in lines if line.startswith(f"{name}:")), 0)


def _process_of(thread: int) -> int:
    return _number_in_status(thread, "Tgid")


def _is_unix(descriptor: int) -> bool:
    with socket.socket(fileno=os.dup(descriptor)) as copied:
        return copied.getsockopt(socket.SOL_SOCKET, getattr(socket, "SO_DOMAIN", 39)) == socket.AF_UNIX


def _may_wait(thread: int, descriptor: int) -> bool:
    """Whether a connect may take time, because the socket's owner waits for it; True where that cannot be told."""
    try:
        flags = Path(f"/proc/{thread}/fdinfo/{descriptor & 0xFFFFFFFF}").read_text().splitlines()[1]
        return not int(flags.partition(":")[2], 8) & os.O_NONBLOCK
    except (OSError, ValueError, IndexError):
        return True


def children_bytes(pid: int) -> int:
    """Memory of all processes below this one."""
    import psutil  # confinement itself works without any package

    total = 0
    with suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with suppress(psutil.Error):
                total += child.memory_info().rss
    return total
