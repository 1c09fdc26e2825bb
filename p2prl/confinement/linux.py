"""Linux calls that confine a process, through ctypes: no privileges, no capabilities, Landlock, seccomp, namespaces.

Written here because the libraries for them need system packages or a compiler. Each function affects the calling thread
and what it starts later, so callers have one thread, but for `seccomp_install`. Each raises `OSError` when the kernel
refuses.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import platform
import signal
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_SET_CHILD_SUBREAPER = 36
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC = 1, 1
_SECCOMP_FILTER_FLAG_NEW_LISTENER, _SECCOMP_FILTER_FLAG_WAIT_KILLABLE = 1 << 3, 1 << 5
_SECCOMP_CALLS = {"x86_64": 317, "aarch64": 277}

_CLONE_NEWUTS = 0x04000000
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000

_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF = 444, 445, 446  # the same on all architectures
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_DIR, _MAKE_REG, _MAKE_SOCK = 1 << 7, 1 << 8, 1 << 9
_REFER, _TRUNCATE, _IOCTL_DEVICE = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS_BY_VERSION = ((1, 13), (2, 14), (3, 15), (5, 16))
"""Landlock version, and how many file rights the kernel knows from it on. All are handled, so all are denied."""

_NETWORK_RIGHTS = 0b11  # bind and connect TCP; since version 4
_SCOPES = 0b11  # abstract Unix sockets and signals outside the sandbox; since version 6

_PIDFD_GETFD = 438  # the same on all architectures

_CAPABILITY_VERSION_3 = 0x20080522


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def _prctl(option: int, value: int, pointer: object = None) -> None:
    zero = ctypes.c_ulong(0)
    third = zero if pointer is None else pointer
    _checked(_libc().prctl(option, ctypes.c_ulong(value), third, zero, zero), "prctl")


def die_with_parent() -> None:
    """Have this process killed when its parent's thread ends. Does not help if that has already happened."""
    _prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, so that none is lost."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """No program that this process executes gains privileges. Landlock and seccomp need it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def forbid_tracing() -> None:
    """No other process of the user reads this one's memory; it writes no core dumps."""
    _prctl(_PR_SET_DUMPABLE, 0)


def drop_capabilities() -> None:
    """Give up every capability for good: the superuser becomes an ordinary owner of files, and so do its programs."""
    capability = 0
    with suppress(OSError):  # one that the kernel has not, or a user who may drop none, and has none
        while True:
            _prctl(_PR_CAPBSET_DROP, capability)
            capability += 1
    with suppress(OSError):
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc().capset(header, bytes(24)), "capset")


HIDDEN_NAME = b"localhost"
"""The host name that confined processes see."""


def leave_network() -> None:
    """Enter a network namespace without interfaces, in which the machine has another name."""
    others = _CLONE_NEWNET | _CLONE_NEWUTS
    if os.geteuid() != 0 or _libc().unshare(others) < 0:
        _checked(_libc().unshare(_CLONE_NEWUSER | others), "unshare")
    _rename_host()


def hide_host_name() -> None:
    """See another host name from now on; the machine keeps its own. For the superuser alone."""
    _checked(_libc().unshare(_CLONE_NEWUTS), "unshare")
    _rename_host()


def _rename_host() -> None:
    for rename in (_libc().sethostname, _libc().setdomainname):
        _checked(rename(HIDDEN_NAME, ctypes.c_size_t(len(HIDDEN_NAME))), "sethostname")


def landlock_version() -> int:
    """Version of the kernel's Landlock; 0 if it has none."""
    version: int = _libc().syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), _LANDLOCK_CREATE_RULESET_VERSION)
    return max(0, version)


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a process may still do with files and programs; everything else is denied. Missing paths are skipped."""

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    """Folders or files that may be read, written, made and removed; no links, pipes or devices are made."""
    sockets: tuple[Path, ...] = ()
    """Folders in which Unix sockets may be made, besides all that is allowed in `writable`."""
    rewritable: tuple[Path, ...] = ()
    """Files, or folders of them, that may be read and written; none is made or removed."""
    devices: tuple[Path, ...] = ()
    """Devices, or folders of them, that may be read, written and controlled."""
    programs: tuple[Path, ...] = ()
    """Programs, or folders of them, that may be read and executed."""
    tcp: bool = False
    """Whether TCP connections may be made and taken."""


def landlock_ruleset(access: Access) -> int:
    """A file descriptor of rules that deny every other access, for `landlock_restrict`, as often as needed."""
    version = landlock_version()
    known = (1 << max(bits for since, bits in _FILE_RIGHTS_BY_VERSION if version >= since)) - 1
    handles_tcp = version >= 4 and not access.tcp
    attributes = struct.pack("<QQQ", known, _NETWORK_RIGHTS if handles_tcp else 0, _SCOPES if version >= 6 else 0)
    known_bytes = 8 if version < 4 else 16 if version < 6 else 24
    call = _libc().syscall
    ruleset = _checked(
        call(_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(known_bytes), 0), "landlock_create_ruleset"
    )
    os.set_inheritable(ruleset, False)
    changing = _WRITE_FILE | _TRUNCATE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER
    reading = _READ_FILE | _READ_DIR
    for paths, rights in (
        (access.readable, reading),
        (access.writable, reading | changing),
        (access.sockets, reading | changing | _MAKE_SOCK),
        (access.rewritable, reading | _WRITE_FILE | _TRUNCATE),
        (access.devices, reading | _WRITE_FILE | _IOCTL_DEVICE),
        (access.programs, reading | _EXECUTE),
    ):
        for path in paths:
            if path.exists():
                _allow(ruleset, path, rights & known)
    return ruleset


_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE

_pinned: list[int] = []
"""Open files of /proc that rules name. The kernel forgets its numbers for them otherwise, and the rules with them."""


def _allow(ruleset: int, path: Path, rights: int) -> None:
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("<Qi", rights if path.is_dir() else rights & _OF_FILES, opened)
        _checked(
            _libc().syscall(_LANDLOCK_ADD_RULE, ruleset, _LANDLOCK_RULE_PATH_BENEATH, rule, 0), "landlock_add_rule"
        )
    finally:
        if path.parts[1:2] == ("proc",):
            _pinned.append(opened)
        else:
            os.close(opened)


def landlock_restrict(ruleset: int) -> None:
    """Apply the rules of `landlock_ruleset` to this process, for good."""
    _checked(_libc().syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")


def seccomp_install(program: bytes, *, every_thread: bool = False) -> None:
    """Install a filter on this process, for good; with `every_thread` on threads that have started already as well."""
    if every_thread:
        result = _seccomp(program, _SECCOMP_FILTER_FLAG_TSYNC)
        if result:
            raise OSError(0, f"seccomp: thread {result} has filters of its own")
        return
    instructions = ctypes.create_string_buffer(program, len(program))
    descriptor = _FilterProgram(len(program) // 8, ctypes.addressof(instructions))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(descriptor))


def seccomp_listen(program: bytes) -> int:
    """Install a filter on this thread, for good. Returns the descriptor that tells of the calls it asks about.

    The process that holds the descriptor answers them: send it away and close it. Before Linux 5.19 a signal interrupts
    a call that waits, which is then made anew.
    """
    try:
        return _seccomp(program, _SECCOMP_FILTER_FLAG_NEW_LISTENER | _SECCOMP_FILTER_FLAG_WAIT_KILLABLE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return _seccomp(program, _SECCOMP_FILTER_FLAG_NEW_LISTENER)


def _seccomp(program: bytes, flags: int) -> int:
    instructions = ctypes.create_string_buffer(program, len(program))
    descriptor = _FilterProgram(len(program) // 8, ctypes.addressof(instructions))
    number = _SECCOMP_CALLS[platform.machine()]
    return _checked(_libc().syscall(number, _SECCOMP_SET_MODE_FILTER, flags, ctypes.byref(descriptor)), "seccomp")


def descriptor_of(pid: int, descriptor: int) -> int:
    """A copy of another process's open file. Needs the rights of a debugger over it."""
    process = os.pidfd_open(pid)
    try:
        return _checked(_libc().syscall(_PIDFD_GETFD, process, descriptor, 0), "pidfd_getfd")
    finally:
        os.close(process)


def connect_socket(descriptor: int, address: bytes) -> int:
    """Connect a socket to an address in the kernel's form. Returns the errno, 0 when it is connected."""
    if _libc().connect(descriptor, address, len(address)) < 0:
        return ctypes.get_errno()
    return 0


class _FilterProgram(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))
