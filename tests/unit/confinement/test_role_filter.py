"""Filters of roles and their network processes, by the interpreter of classic BPF in `bpf.py`."""

from __future__ import annotations

import errno
import os

import pytest

from p2prl.confinement.role_filter import (
    HOST_CALLS,
    LAST_CALL,
    OUTSIDE_CALLS,
    network_filter,
    open_filter,
    role_filter,
)
from p2prl.confinement.scorer_filter import ARCHITECTURES
from tests.unit.confinement.bpf import ALLOW, KILL, NOTIFY, WIDE, verdict

THREAD = 0x003D0F00  # the flags of the C library's pthread_create
OWN_ALONE = {
    "setpriority", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr", "ioprio_set",
    "migrate_pages", "move_pages", "prlimit64",
}  # fmt: skip
RULED = {
    "clone", "clone3", "socketpair", "sendto", "kill", "tgkill", "rt_tgsigqueueinfo", "ioctl", "fcntl", *OWN_ALONE,
}  # fmt: skip
UNIX, STREAM, DATAGRAM, SEQUENCED = 1, 1, 2, 5
MACHINES = sorted(ARCHITECTURES)


def asked(program: bytes, machine: str, name: str, *arguments: int) -> object:
    number = (HOST_CALLS[machine] | OUTSIDE_CALLS[machine])[name]
    return verdict(program, number, arguments, ARCHITECTURES[machine].audit)


@pytest.mark.parametrize("machine", MACHINES)
def test_all_but_the_listed_calls_are_allowed(machine: str) -> None:
    audit = ARCHITECTURES[machine].audit
    host, outside = HOST_CALLS[machine], OUTSIDE_CALLS[machine]
    assert len(set(host.values()) | set(outside.values())) == len(host) + len(outside), "no number twice"
    names = {number: name for name, number in (host | outside).items()}
    for number in range(LAST_CALL + 1):
        name = names.get(number, "")
        if name not in RULED:
            assert verdict(role_filter(machine), number, (), audit) == (errno.EPERM if name else ALLOW), number
            assert verdict(open_filter(machine), number, (), audit) == (errno.EPERM if name in host else ALLOW), number


@pytest.mark.parametrize("machine", MACHINES)
def test_unknown_calls_are_missing_and_other_architectures_killed(machine: str) -> None:
    audit = ARCHITECTURES[machine].audit
    for program in (role_filter(machine), open_filter(machine)):
        for number in (LAST_CALL + 1, 600, 1 << 30, (1 << 30) + 59, 2**32 - 1):
            assert verdict(program, number, (), audit) == errno.ENOSYS
        assert verdict(program, 0, (), 0x40000003) == KILL


@pytest.mark.parametrize("machine", MACHINES)
def test_threads_and_one_kind_of_socket_pair(machine: str) -> None:
    program = role_filter(machine)
    assert asked(program, machine, "clone", THREAD) == ALLOW
    assert asked(program, machine, "clone", 17) == errno.EPERM  # fork
    assert asked(program, machine, "clone", THREAD | 0x10000000) == errno.EPERM  # a user namespace
    assert asked(program, machine, "clone3") == errno.ENOSYS
    for kind in (1, 1 | 0o2000000, 1 | 0o4000, 1 | 0o2004000):
        assert asked(program, machine, "socketpair", 1, kind) == ALLOW
    for kind in (2, 2 | 0o2000000, 5, WIDE + 1):
        assert asked(program, machine, "socketpair", 1, kind) == errno.EPERM
    assert asked(program, machine, "sendto", 3, 0, 0, 0, 0) == ALLOW
    assert asked(program, machine, "sendto", 3, 0, 0, 0, WIDE) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["kill", "tgkill", "rt_tgsigqueueinfo"])
def test_signals_to_itself_alone(machine: str, name: str) -> None:
    program = role_filter(machine)
    assert asked(program, machine, name, os.getpid(), 15) == ALLOW
    for other in (0, 1, os.getppid(), 2**64 - 1, 2**32 - 1, WIDE + os.getpid()):
        assert asked(program, machine, name, other, 15) == errno.EPERM


def every_filter(machine: str) -> tuple[bytes, ...]:
    return role_filter(machine), open_filter(machine), network_filter(machine, guarded=True)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", sorted(OWN_ALONE))
def test_limits_priority_and_processors_of_itself_alone(machine: str, name: str) -> None:
    before = {"setpriority": (0,), "ioprio_set": (1,)}.get(name, ())  # PRIO_PROCESS, IOPRIO_WHO_PROCESS
    for program in every_filter(machine):
        for itself in (0, os.getpid()):
            assert asked(program, machine, name, *before, itself) == ALLOW
        for other in (os.getppid(), 1, 2**32 - 1, WIDE + os.getpid()):
            assert asked(program, machine, name, *before, other) == errno.EPERM
        for kind in (2, 3) if before else ():  # a group of processes or a user's, of which 0 names this one's
            assert asked(program, machine, name, kind, 0) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_no_file_signals_another_program(machine: str) -> None:
    for program in every_filter(machine):
        for command in (8, 10, 15, WIDE + 8):  # F_SETOWN, F_SETSIG, F_SETOWN_EX
            assert asked(program, machine, "fcntl", 3, command) == errno.EPERM
        for command in (0, 1, 2, 3, 4, 6, 9, 1030, 1033):  # F_DUPFD … F_ADD_SEALS, F_GETOWN
            assert asked(program, machine, "fcntl", 3, command) == ALLOW
        for request in (0x8901, 0x8902, 0x8927):  # FIOSETOWN, SIOCSPGRP, SIOCGIFHWADDR
            assert asked(program, machine, "ioctl", 3, request) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_a_network_process_opens_sockets_of_the_internet_and_unix_streams(machine: str) -> None:
    program = network_filter(machine, guarded=True)
    for family in (2, 10, 16):
        for kind in (STREAM, DATAGRAM, 3, STREAM | 0o2004000):
            assert asked(program, machine, "socket", family, kind) == ALLOW
    for kind in (STREAM, STREAM | 0o2000000, STREAM | 0o2004000):
        assert asked(program, machine, "socket", UNIX, kind) == ALLOW
        assert asked(program, machine, "socketpair", UNIX, kind) == ALLOW
    for kind in (DATAGRAM, SEQUENCED, DATAGRAM | 0o2000000, WIDE + STREAM):
        assert asked(program, machine, "socket", UNIX, kind) == errno.EPERM
        assert asked(program, machine, "socketpair", UNIX, kind) == errno.EPERM
    for family in (3, 17, 31, 38, 40, WIDE + 2):  # AX.25, packets, Bluetooth, the kernel's ciphers, VSOCK
        assert asked(program, machine, "socket", family, STREAM) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_a_network_process_asks_its_guard(machine: str) -> None:
    audit, uname = ARCHITECTURES[machine].audit, {"x86_64": 63, "aarch64": 160}[machine]
    for guarded, answer in ((True, NOTIFY), (False, ALLOW)):
        program = network_filter(machine, guarded=guarded)
        assert asked(program, machine, "connect") == answer
        assert asked(program, machine, "kill", 1) == answer
        assert verdict(program, uname, (), audit) == answer
        assert asked(program, machine, "tgkill", os.getpid(), 1, 15) == ALLOW
        assert asked(program, machine, "tgkill", 1, 1, 23) == ALLOW, "SIGURG: Go's own, and ignored by others"
        for name in ("tgkill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "shmget", "shmat", "mq_open"):
            assert asked(program, machine, name, 1, 1, 15) == errno.EPERM, name
        for name in ("bind", "listen", "accept4", "sendto", "execve", "clone"):
            assert asked(program, machine, name) == ALLOW, name


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_types_into_the_terminal(machine: str) -> None:
    for program in (role_filter(machine), open_filter(machine)):
        for request in (0x5412, 0x541C):
            assert asked(program, machine, "ioctl", 0, request) == errno.EPERM
        for request in (0x5401, 0x5413, 0xC0184600):  # TCGETS, TIOCGWINSZ, one of a driver
            assert asked(program, machine, "ioctl", 0, request) == ALLOW
