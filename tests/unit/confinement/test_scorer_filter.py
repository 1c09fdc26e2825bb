"""The seccomp filter, run by the interpreter of classic BPF in `bpf.py`."""

from __future__ import annotations

import errno

import pytest

from p2prl.confinement.scorer_filter import ARCHITECTURES, Architecture, fork_server_filter, worker_filter
from tests.unit.confinement.bpf import ALLOW, KILL, WIDE, verdict


@pytest.fixture(params=sorted(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest) -> Architecture:
    return ARCHITECTURES[request.param]


def asked(architecture: Architecture, name: str, *arguments: int, may_open: bool = True) -> object:
    program = worker_filter(architecture, may_open=may_open)
    return verdict(program, architecture.numbers[name], arguments, architecture.audit)


@pytest.mark.parametrize("name", ["read", "write", "mmap", "futex", "exit_group", "recvfrom", "clock_gettime"])
def test_scoring_needs_these(architecture: Architecture, name: str) -> None:
    assert asked(architecture, name, -1, WIDE, 7) == ALLOW


def test_every_call_outside_the_list_is_refused(architecture: Architecture) -> None:
    program = worker_filter(architecture, may_open=True)
    listed = set(architecture.numbers.values())
    for number in (*range(600), 1 << 30, (1 << 30) + 57, 2**32 - 1):
        if number not in listed:
            assert verdict(program, number, (), architecture.audit) == errno.EPERM, number


def test_another_architecture_is_killed(architecture: Architecture) -> None:
    program = worker_filter(architecture, may_open=True)
    assert verdict(program, architecture.numbers["read"], (), 0x40000003) == KILL


def test_dangerous_calls_are_not_in_the_table(architecture: Architecture) -> None:
    for name in (
        "execve", "execveat", "fork", "vfork", "socket", "connect", "bind", "sendmsg", "kill", "tkill", "tgkill",
        "ptrace", "prctl", "seccomp", "mount", "unshare", "setns", "bpf", "setsid", "setpgid", "unlink", "unlinkat",
        "chmod", "fchmodat", "truncate", "ftruncate", "memfd_create", "io_uring_setup", "setrlimit", "setpriority",
    ):  # fmt: skip
        assert name not in architecture.numbers


def test_threads_start_and_processes_do_not(architecture: Architecture) -> None:
    thread = 0x003D0F00  # the flags of the C library's pthread_create
    assert asked(architecture, "clone", thread) == ALLOW
    assert asked(architecture, "clone", 17) == errno.EPERM  # fork
    assert asked(architecture, "clone", 0x4111) == errno.EPERM  # vfork
    for new_namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000, 0x80):
        assert asked(architecture, "clone", thread | new_namespace) == errno.EPERM
    assert asked(architecture, "clone3", 0, 88) == errno.ENOSYS


@pytest.mark.parametrize("flag", [0o1, 0o2, 0o100, 0o1000, 0o2000, 0o20200000])
def test_files_open_for_reading_only(architecture: Architecture, flag: int) -> None:
    assert asked(architecture, "openat", -100, 1, 0o2000000) == ALLOW
    assert asked(architecture, "openat", -100, 1, 0o2000000 | flag) == errno.EPERM
    if "open" in architecture.numbers:
        assert asked(architecture, "open", 1, 0) == ALLOW
        assert asked(architecture, "open", 1, flag) == errno.EPERM


def test_no_file_opens_without_landlock(architecture: Architecture) -> None:
    assert asked(architecture, "openat", -100, 1, 0, may_open=False) == errno.EACCES
    assert asked(architecture, "read", 3, may_open=False) == ALLOW


@pytest.mark.parametrize(
    ("name", "argument", "allowed", "refused"),
    [
        ("socketpair", 0, (1,), (0, 2, 10, 16, 17)),
        ("sendto", 4, (0,), (1, WIDE)),
        ("prlimit64", 2, (0,), (1, WIDE)),
        ("fcntl", 1, (0, 1, 2, 3, 4, 1030), (8, 10, 15, 1024, 1033)),  # F_SETOWN, F_SETSIG, F_SETOWN_EX, leases, seals
        ("ioctl", 1, (0x5401, 0x5421), (0x5412, 0x5452, 0x8901, WIDE + 0x5401)),  # TIOCSTI, FIOASYNC, FIOSETOWN
    ],
)
def test_arguments(
    architecture: Architecture, name: str, argument: int, allowed: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    for value in allowed:
        assert asked(architecture, name, *[5] * argument, value) == ALLOW, value
    for value in refused:
        assert asked(architecture, name, *[5] * argument, value) == errno.EPERM, value


def asked_of_fork_server(architecture: Architecture, name: str, *arguments: int) -> object:
    numbers = architecture.numbers | architecture.forking
    return verdict(fork_server_filter(architecture, may_write=False), numbers[name], arguments, architecture.audit)


def test_the_fork_server_allows_what_its_workers_call_and_forking(architecture: Architecture) -> None:
    for name in ("read", "mmap", "getdents64", "recvmsg", "wait4", "setsid", "seccomp", "landlock_restrict_self"):
        assert asked_of_fork_server(architecture, name, 5, 5, 5) == ALLOW
    assert asked_of_fork_server(architecture, "clone", 0x01200011) == ALLOW  # the C library's fork
    assert asked_of_fork_server(architecture, "clone", 0x003D0F00) == ALLOW
    assert asked_of_fork_server(architecture, "clone", 0x01200011 | 0x10000000) == errno.EPERM
    assert asked_of_fork_server(architecture, "clone3", 0, 88) == errno.ENOSYS


def test_the_fork_server_refuses_every_other_call(architecture: Architecture) -> None:
    program = fork_server_filter(architecture, may_write=True)
    listed = set(architecture.numbers.values()) | set(architecture.forking.values())
    for number in (*range(600), 1 << 30, 2**32 - 1):
        if number not in listed:
            assert verdict(program, number, (), architecture.audit) == errno.EPERM, number
    assert verdict(program, architecture.numbers["read"], (), 0x40000003) == KILL
    for name in (
        "execve", "execveat", "socket", "connect", "bind", "sendmsg", "sendmmsg", "ptrace", "process_vm_readv", "mount",
        "unshare", "chmod", "fchmod", "fchmodat", "chown", "utime", "utimes", "utimensat", "unlink", "unlinkat",
        "rename", "renameat2", "mkdirat", "setxattr", "tkill", "tgkill", "pidfd_send_signal", "setpgid",
    ):  # fmt: skip
        assert name not in architecture.forking


@pytest.mark.parametrize(
    ("name", "argument", "allowed", "refused"),
    [
        ("kill", 1, (9,), (0, 2, 15, WIDE + 9)),
        ("prctl", 0, (1, 15, 16, 22), (4, 36, 38, WIDE + 1)),  # DUMPABLE would allow tracing
        ("prlimit64", 0, (0,), (1, WIDE)),
        ("socketpair", 0, (1,), (2, 16)),
        ("openat", 2, (0, 0o2000000), (1, 2, 0o100)),
        ("fcntl", 1, (3,), (8, 10)),
    ],
)
def test_arguments_in_the_fork_server(
    architecture: Architecture, name: str, argument: int, allowed: tuple[int, ...], refused: tuple[int, ...]
) -> None:
    for value in allowed:
        assert asked_of_fork_server(architecture, name, *[5] * argument, value) == ALLOW, value
    for value in refused:
        assert asked_of_fork_server(architecture, name, *[5] * argument, value) == errno.EPERM, value


def test_the_fork_server_opens_for_writing_only_where_landlock_says_what(architecture: Architecture) -> None:
    calls = architecture.numbers | architecture.forking
    arguments = (5, 5, 0o1101)  # O_WRONLY, O_CREAT, O_TRUNC
    for may_write, expected in ((True, ALLOW), (False, errno.EPERM)):
        program = fork_server_filter(architecture, may_write=may_write)
        assert verdict(program, calls["openat"], arguments, architecture.audit) == expected
        assert verdict(program, calls["openat"], (5, 5, 0), architecture.audit) == ALLOW
