"""Filters of roles and their network processes, by the interpreter of classic BPF in `bpf.py`."""

from __future__ import annotations

import errno
import os

import pytest

from p2prl.confinement.host_calls import HOST_CALLS, LAST_CALL, OUTSIDE_CALLS, open_filter, role_filter
from p2prl.confinement.seccomp_filter import ARCHITECTURES
from tests.unit.confinement.bpf import ALLOW, KILL, WIDE, verdict

THREAD = 0x003D0F00  # the flags of the C library's pthread_create
RULED = {"clone", "clone3", "socketpair", "sendto", "prlimit64", "kill", "tgkill", "rt_tgsigqueueinfo", "ioctl"}
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


@pytest.mark.parametrize("machine", MACHINES)
def test_limits_of_itself_alone(machine: str) -> None:
    program = role_filter(machine)
    for itself in (0, os.getpid()):
        assert asked(program, machine, "prlimit64", itself) == ALLOW
    assert asked(program, machine, "prlimit64", os.getppid()) == errno.EPERM


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_types_into_the_terminal(machine: str) -> None:
    for program in (role_filter(machine), open_filter(machine)):
        for request in (0x5412, 0x541C):
            assert asked(program, machine, "ioctl", 0, request) == errno.EPERM
        for request in (0x5401, 0x5413, 0xC0184600):  # TCGETS, TIOCGWINSZ, one of a driver
            assert asked(program, machine, "ioctl", 0, request) == ALLOW
