"""Hostile answers: completions that attack the scorer, the machine it runs on, or the scores of others.

Three kinds. An `ESCAPE` is Python for a scorer that executes answers: it gives itself the right answer if it got out of
the sandbox, so a score above 0 is an escape. A `DISRUPTION` is Python too, and tries to hang, crash or corrupt the
process. A `TEXT` attacks scorers that parse answers. Everything is made from the target, so a test can look for traces.
"""

from __future__ import annotations

import enum
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from p2prl_lab.testing.hostile_disruptions import hostile_disruptions
from p2prl_lab.testing.hostile_texts import hostile_texts

SECRET = "the-secret-key-of-this-machine"  # noqa: S105  # planted for answers to look for
"""Content of the target's key file."""


class Kind(enum.Enum):
    """Kinds of hostile answers."""

    ESCAPE = "escape"
    DISRUPTION = "disruption"
    TEXT = "text"


@dataclass(frozen=True)
class HostileAnswer:
    """One hostile answer."""

    kind: Kind
    text: str


@dataclass(frozen=True)
class Target:
    """Everything around a pool that answers attack."""

    key: Path
    """A file with `SECRET`, in a folder of its own, which answers try to write to."""
    port: int
    """A TCP port on 127.0.0.1 that listens."""
    pid: int
    """Process of the pool."""


def hostile_answers(target: Target) -> list[HostileAnswer]:
    """Every hostile answer, always in the same order."""
    return [
        *(HostileAnswer(Kind.ESCAPE, _attempt(code)) for code in _escapes(target)),
        *(HostileAnswer(Kind.DISRUPTION, code) for code in hostile_disruptions()),
        *(HostileAnswer(Kind.TEXT, text) for text in hostile_texts(str(target.key.parent))),
    ]


def _attempt(code: str) -> str:
    """Code that scores only if `code` raises nothing; otherwise its error becomes the failure."""
    body = "\n".join(f"    {line}" for line in code.splitlines())
    return f"""import ctypes, os, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def check(result):
    if result is None or result < 0: raise OSError(ctypes.get_errno(), "refused")
try:
{body}
    result = row["answer"]
except BaseException as error:
    raise ValueError(repr(error)) from None
"""


def _escapes(target: Target) -> Iterator[str]:
    key, folder, pid = str(target.key), str(target.key.parent), target.pid
    yield from (code.format(key=key, folder=folder) for code in _FILE_ESCAPES)
    yield from (f"open({path.format(pid=pid)!r}, 'rb').read(1)" for path in _PRIVATE_FILES)
    yield from (code.format(folder=folder) for code in _PROCESS_ESCAPES)
    yield from (code.format(port=target.port, folder=folder) for code in _NETWORK_ESCAPES)
    yield from (code.format(pid=pid) for code in _SIGNAL_ESCAPES)
    yield from _PRIVILEGE_ESCAPES
    if platform.machine() == "x86_64":
        yield from (f"check(libc.syscall({number}, 0, 0, 0, 0, 0))" for number in _REFUSED_SYSTEM_CALLS)


_FILE_ESCAPES = (
    "open({key!r}).read()",
    "open({key!r}, 'r+').read()",
    "raise ValueError(open({key!r}).read())",
    "os.open({key!r}, os.O_RDONLY)",
    "import io; io.FileIO({key!r}).read()",
    "import pathlib; pathlib.Path({key!r}).read_bytes()",
    "import linecache\nif not linecache.getlines({key!r}): raise OSError",
    "import runpy; runpy.run_path({key!r})",
    "import sqlite3; sqlite3.connect({key!r}).execute('select * from x')",
    "os.listdir({folder!r})",
    "os.scandir({folder!r})",
    "import glob\nif not glob.glob({folder!r} + '/*'): raise OSError",
    "open({folder!r} + '/made', 'w').write('x')",
    "open({folder!r} + '/made', 'x')",
    "open({key!r}, 'a').write('x')",
    "os.open({folder!r} + '/made', os.O_CREAT | os.O_WRONLY)",
    "os.open({folder!r}, os.O_TMPFILE | os.O_RDWR)",
    "os.open({key!r}, os.O_TRUNC)",
    "check(libc.creat(({folder!r} + '/made').encode(), 0o600))",
    "check(libc.open({key!r}.encode(), os.O_RDONLY))",
    "os.mkdir({folder!r} + '/made')",
    "os.mkfifo({folder!r} + '/made')",
    "os.mknod({folder!r} + '/made')",
    "os.symlink('/etc/passwd', {folder!r} + '/made')",
    "os.link({key!r}, {folder!r} + '/made')",
    "os.rename({key!r}, {folder!r} + '/made')",
    "os.unlink({key!r})",
    "os.rmdir({folder!r})",
    "import shutil; shutil.rmtree({folder!r})",
    "os.truncate({key!r}, 0)",
    "os.chmod({key!r}, 0o777)",
    "os.chown({key!r}, 1, 1)",
    "os.utime({key!r})",
    "os.setxattr({key!r}, 'user.x', b'x')",
    "import tempfile; tempfile.NamedTemporaryFile()",
    "open('/dev/shm/made', 'w')",
    "os.memfd_create('made')",
    "from multiprocessing import shared_memory; shared_memory.SharedMemory(create=True, size=10)",
    "check(libc.shmget(0, 4096, 0o1600))",
    "check(libc.msgget(0, 0o1600))",
    "check(libc.semget(0, 1, 0o1600))",
)

_PRIVATE_FILES = (
    "/proc/self/environ", "/proc/self/mem", "/proc/self/maps", "/proc/1/cmdline", "/proc/{pid}/environ",
    "/proc/{pid}/mem", "/proc/{pid}/maps", "/proc/{pid}/cmdline", "/proc/self/root/etc/passwd", "/etc/passwd",
    "/etc/shadow", "/etc/hostname", "/proc/version", "/proc/net/tcp", "/sys/devices/system/cpu/online", "/dev/zero", "/dev/tty",
)  # fmt: skip

_PROCESS_ESCAPES = (
    "os.fork()",
    "os.forkpty()",
    "check(libc.fork())",
    "import pty; pty.fork()",
    "import subprocess; subprocess.run(['true'], check=True)",
    "import subprocess; subprocess.check_output('touch {folder}/made', shell=True)",
    "if os.system('touch {folder}/made'): raise OSError",
    "if os.popen('echo out').read() != 'out\\n': raise OSError",
    "os.execv('/bin/true', ['true'])",
    "os.execve(sys.executable, [sys.executable], {{}})",
    "os.posix_spawn('/bin/true', ['true'], {{}})",
    "if os.spawnv(os.P_WAIT, '/bin/true', ['true']): raise OSError",
    "import multiprocessing as m; p = m.get_context('fork').Process(target=print); p.start()",
    "import multiprocessing as m; m.get_context('spawn').Process(target=print).start()",
    "import concurrent.futures as c; c.ProcessPoolExecutor(1).submit(print).result()",
    "while True: os.fork()",
    "check(libc.clone(0, 0, 17, 0))",
    "check(libc.syscall(435, 0, 88))",
)

_NETWORK_ESCAPES = (
    "socket.create_connection(('127.0.0.1', {port}), 1)",
    "socket.socket()",
    "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', {port}))",
    "socket.socket(socket.AF_INET6)",
    "socket.socket(socket.AF_UNIX)",
    "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
    "socket.create_server(('127.0.0.1', 0))",
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{port}', timeout=1)",
    "import http.client; http.client.HTTPConnection('127.0.0.1', {port}, timeout=1).request('GET', '/')",
    "socket.getaddrinfo('example.org', 80)",
    "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM); a.sendto(b'x', {folder!r} + '/made')",
    "a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0])",
    "a, b = socket.socketpair(); a.bind({folder!r} + '/made')",
    "a, b = socket.socketpair(); a.connect('\\0abstract')",
    "import asyncio; asyncio.run(asyncio.open_connection('127.0.0.1', {port}))",
)

_SIGNAL_ESCAPES = (
    "os.kill(os.getppid(), 9)",
    "os.kill(os.getppid(), 0)",
    "os.kill({pid}, 0)",
    "os.kill({pid}, 9)",
    "os.kill({pid}, 2)",
    "os.kill({pid}, 19)",
    "os.kill(0, 9)",
    "os.kill(-1, 9)",
    "os.killpg(os.getpgrp(), 9)",
    "import signal; signal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)",
    "check(libc.sigqueue({pid}, 9, 0))",
    "import fcntl\nfor fd in range(3, 64):\n    try: os.fstat(fd)\n    except OSError: continue\n"
    "    fcntl.fcntl(fd, 10, 9); fcntl.fcntl(fd, fcntl.F_SETOWN, {pid}); fcntl.fcntl(fd, fcntl.F_SETFL, 0o20000)\n"
    "    break\nelse: raise OSError",
    "check(libc.ptrace(16, os.getppid(), 0, 0))",
    "check(libc.ptrace(16, {pid}, 0, 0))",
    "check(libc.ptrace(0, 0, 0, 0))",
    "os.setpriority(os.PRIO_PROCESS, {pid}, 19)",
)

_PRIVILEGE_ESCAPES = (
    "os.setuid(0)",
    "os.setgid(0)",
    "os.setgroups([])",
    "os.setsid()",
    "os.setpgid(0, 0)",
    "os.nice(1)",
    "os.sched_setaffinity(0, [0])",
    "os.chroot('/')",
    "os.chdir('/tmp')",
    "check(libc.unshare(0x10000000))",
    "check(libc.mount(b'none', b'/mnt', b'tmpfs', 0, 0))",
    "check(libc.umount2(b'/proc', 2))",
    "check(libc.prctl(1, 0, 0, 0, 0))",
    "check(libc.prctl(4, 1, 0, 0, 0))",
    "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))",
    "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))",
)

_REFUSED_SYSTEM_CALLS = (
    *(101, 155, 165, 167, 169, 170, 172, 175, 246, 248, 250, 272, 298, 303, 304, 308, 310, 311, 312, 313, 317, 319),
    *(321, 323, 425, 426, 428, 429, 430, 434, 437, 438, 440, 442, 447, 450),
    *(0x40000000 + 57, 0x40000000 + 59),  # the x32 numbers of fork and execve
)
"""ptrace, mount, swapon, reboot, modules, keys, bpf, perf, userfaultfd, io_uring, pidfd, new ways to mount and others."""
