"""Programs that an owner names: seen among real processes by their whole names, and never this program's own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from p2prl.confinement.children import Child
from p2prl.controls.program_process import STALE_S, ProgramWatch, programs_program
from p2prl.controls.program_sensor import PERIOD_S, running, runs_p2prl, watch
from p2prl.controls.watcher import RESTART_S
from p2prl_lab.testing.swarm_processes import wait_until
from tests.unit.controls.test_desktop_process import ENDED

NOBODY = 1 << 30
"""No process has this id."""


@contextmanager
def program(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`cat` under another name, until the block ends."""
    shutil.copy2(shutil.which("cat") or "/bin/cat", path)
    with subprocess.Popen([path], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_whole_names_in_any_case(tmp_path: Path) -> None:
    assert running(["Blendish"], NOBODY) == []
    with program(tmp_path / "blendish"):
        assert running(["OBS-ish", "Blendish", "blend", "cat"], NOBODY) == ["Blendish"]
    assert running(["blendish"], NOBODY) == []


def test_names_that_the_kernel_cuts_are_whole(tmp_path: Path) -> None:
    with program(tmp_path / "a-name-of-twenty-four-ch"):
        assert running(["a-name-of-twenty-four-ch", "a-name-of-twent"], NOBODY) == ["a-name-of-twenty-four-ch"]


def test_what_a_worker_has_started_is_its_own(tmp_path: Path) -> None:
    with program(tmp_path / "ownish"):
        assert running(["ownish"], os.getpid()) == []
        assert running(["ownish"], NOBODY) == ["ownish"]


@pytest.mark.parametrize(
    ("command", "is_own"),
    [
        (["/usr/bin/python3", "-m", "p2prl", "join", "LINK"], True),
        (["python3.12", "-B", "-m", "p2prl.controls.program_sensor", "7", "9"], True),
        (["/home/me/.venv/bin/python", "/home/me/.venv/bin/p2prl", "join"], True),
        (["p2prl", "join"], True),
        (["code", "/home/me/p2prl"], False),
        (["vim", "-m", "p2prl"], False),
        (["python3", "train.py", "p2prl"], False),
        (["python3", "-m"], False),
        ([], False),
    ],
)
def test_processes_of_this_program_are_told_from_files_of_its_name(command: list[str], is_own: bool) -> None:
    assert runs_p2prl(command) is is_own


class Speaker:
    """Starts watchers that a test speaks for."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []

    def __call__(self, descriptor: int) -> Child:
        self.ends.append(socket.socket(fileno=os.dup(descriptor)))
        return ENDED


def test_a_worker_asks_for_its_list_and_takes_no_other_names() -> None:
    time, speaker = 0.0, Speaker()
    asked = ProgramWatch(speaker, now=lambda: time)
    assert asked.read(()) is None
    assert speaker.ends == [], "no process without a name"
    names = ("blender", "obs")
    assert asked.read(names) == (), "nothing seen yet"
    assert speaker.ends[0].recv(100) == b'["blender","obs"]\n'
    speaker.ends[0].sendall(b'{"running":["obs","shell"]}\n')
    assert asked.read(names) == ("obs",)
    time += STALE_S + 0.1
    assert asked.read(names) is None, "it hangs"
    assert asked.read(("chess",)) == (), "another list, another process"
    assert speaker.ends[0].recv(100) == b""
    speaker.ends[1].sendall(b"nonsense\n")
    assert asked.read(("chess",)) is None
    speaker.ends[1].close()
    time += RESTART_S
    asked.read(("chess",))
    assert asked.read(("chess",)) == ()
    assert len(speaker.ends) == 3
    asked.close()
    for end in speaker.ends:
        end.close()


def test_the_real_watcher_tells_in_time(tmp_path: Path) -> None:
    """From a program's start to a reading that names it, the watcher's own period is the wait."""
    watched = ProgramWatch(programs_program(NOBODY).start)
    names = ("watchedish",)
    wait_until(lambda: watched.read(names) is not None, seconds=10, what="a watcher")
    with program(tmp_path / "watchedish"):
        wait_until(lambda: watched.read(names) == names, seconds=2.0 - 2 * PERIOD_S, what="the program seen")
    wait_until(lambda: watched.read(names) == (), seconds=2.0, what="its end seen")
    watched.close()


@pytest.mark.parametrize("request_line", [b"", b"x" * 40_000])
def test_a_watcher_without_a_list_ends(request_line: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(request_line)
        ours.shutdown(socket.SHUT_WR)
        watch(theirs, NOBODY)
