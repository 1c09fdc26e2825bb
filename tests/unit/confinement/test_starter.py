"""The starter: processes of a fixed table, started and ended for a role that may start none."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from p2prl.confinement.children import Program
from p2prl.confinement.starter import Starter

ECHO = (
    "import os, sys\n"
    "descriptor = int(sys.argv[-1])\n"
    "os.write(descriptor, b'ready')\n"
    "while data := os.read(descriptor, 100): os.write(descriptor, data)\n"
    "sys.exit(7)"
)
FORKING = f"import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(1000)\n{ECHO}"
TABLE = {
    "echo": Program(command=(sys.executable, "-c", ECHO)),
    "forking": Program(command=(sys.executable, "-c", FORKING)),
    "missing": Program(command=("/nonexistent/program",)),
}

ROLE = """
import os, socket, sys
from p2prl.confinement.children import Program
from p2prl.confinement.starter import Starter
marker = sys.argv[1]
starter = Starter({"echo": Program(command=(sys.executable, "-c", sys.argv[2]))}, at_end=lambda: open(marker, "w"))
ours, theirs = socket.socketpair()
child = starter.launch("echo")(theirs.fileno())
theirs.close()
ours.recv(5)
print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def starter() -> Iterator[Starter]:
    others = psutil.Process().children()  # earlier tests of this process may have left some
    made = Starter(TABLE)
    (server,) = (child for child in psutil.Process().children() if child not in others)
    yield made
    made.close()
    assert server.wait(20) == 0


def test_a_process_inherits_its_descriptor_and_ends_with_it(starter: Starter) -> None:
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with theirs:
            child = starter.launch("echo")(theirs.fileno())
        assert ours.recv(5) == b"ready"
        ours.sendall(b"one")
        assert ours.recv(3) == b"one"
        assert child.returncode is None
        with pytest.raises(TimeoutError):
            child.wait(0.0)
        assert os.getsid(child.pid) == child.pid, "Ctrl-C in the terminal does not reach it"
        ours.close()
        assert child.wait(20) == child.returncode == 7


def test_priorities_of_what_was_started_below_and_of_nothing_else(starter: Starter) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        child = starter.launch("forking")(theirs.fileno())
    assert ours.recv(5) == b"ready"
    (below,) = psutil.Process(child.pid).children()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        before = os.getpriority(os.PRIO_PROCESS, other.pid)
        child.lower_priority(other.pid)
        child.lower_priority(below.pid)
        child.remember_family()
        child.end_family()  # obeyed in turn, so the commands before it are done
        assert os.getpriority(os.PRIO_PROCESS, other.pid) == before
        other.communicate(b"\n")
    ours.close()


def test_a_started_process_below_leaves_the_processor_to_others(starter: Starter) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        child = starter.launch("forking")(theirs.fileno())
    assert ours.recv(5) == b"ready"
    (below,) = psutil.Process(child.pid).children()
    before = below.nice()
    child.lower_priority(below.pid)
    while below.nice() == before:
        os.sched_yield()
    assert below.nice() == min(19, before + 10)
    child.remember_family()
    child.end_family()
    ours.close()


def test_killing(starter: Starter) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = starter.launch("echo")(theirs.fileno())
        child.kill()
        assert child.wait(20) == -signal.SIGKILL
        child.kill()
        child.end_family()


def test_a_family_ends_with_those_that_left_its_session(starter: Starter) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = starter.launch("forking")(theirs.fileno())
        ours.recv(5)
        (left,) = psutil.Process(child.pid).children()
        child.remember_family()
        child.end_family()
        psutil.wait_procs([left], timeout=20)
        assert not left.is_running()


def test_a_program_that_cannot_start(starter: Starter) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        with pytest.raises(OSError, match="No such file"):
            starter.launch("missing")(theirs.fileno())
        starter.launch("echo")(theirs.fileno()).kill()
    with pytest.raises(KeyError):
        starter.launch("another")


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_everything_ends_with_the_role_however_it_ends(ending: int, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    role = subprocess.Popen(
        [sys.executable, "-c", ROLE, str(marker), ECHO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    with role:
        assert role.stdout is not None
        child = psutil.Process(int(role.stdout.readline()))
        (server,) = psutil.Process(role.pid).children()
        role.send_signal(ending)
    psutil.wait_procs([child, server], timeout=30)
    assert not child.is_running()
    assert not server.is_running()
    assert marker.exists()
