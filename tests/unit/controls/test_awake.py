"""Keeping the machine awake: held while it is wanted, let go at once, also by a worker that is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from p2prl.confinement.children import Program
from p2prl.controls.awake_process import KeptAwake, awake_missing, awake_program
from p2prl.controls.watcher import RESTART_S
from p2prl_lab.testing.swarm_processes import wait_until

TOOL = '#!/bin/sh\necho $$ >> "$0.pids"\nshift 4\n"$@"\n'
"""Runs a command and waits for its end, as `systemd-inhibit` and `caffeinate` do."""


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    path = tmp_path / "systemd-inhibit"
    path.write_text(TOOL)
    path.chmod(0o755)
    return path


def pids(tool: Path) -> list[int]:
    written = tool.with_name(f"{tool.name}.pids")
    return [int(line) for line in written.read_text().split()] if written.exists() else []


def program(tool: Path) -> Program:
    """The real command with the tool of a test in the place of the system's."""
    _python, _m, module, *command = awake_program().command
    return Program(command=(sys.executable, "-m", module, str(tool), *command[1:]))


def settled(kept: KeptAwake, done: Callable[[], bool]) -> None:
    def step() -> bool:
        kept.follow(wanted=True)
        return done()

    wait_until(step, seconds=20, what="the tool")


@pytest.mark.skipif(sys.platform != "linux", reason="the tool of a test takes systemd-inhibit's options")
def test_it_is_held_while_wanted_and_let_go_after(tool: Path) -> None:
    kept = KeptAwake(program(tool).start, missing="")
    kept.follow(wanted=False)
    assert pids(tool) == [], "no process before it is wanted"
    settled(kept, lambda: kept.is_held)
    assert kept.missing == ""
    (first,) = pids(tool)
    kept.follow(wanted=False)
    assert not kept.is_held
    wait_until(lambda: not psutil.pid_exists(first), seconds=5, what="its end")
    settled(kept, lambda: kept.is_held)
    assert len(pids(tool)) == 2, "wanted again, held again at once"
    kept.close()
    wait_until(lambda: not psutil.pid_exists(pids(tool)[1]), seconds=5, what="its end")


@pytest.mark.skipif(sys.platform != "linux", reason="the tool of a test takes systemd-inhibit's options")
def test_a_worker_that_is_killed_lets_go(tool: Path) -> None:
    held = (
        "import sys; from p2prl.confinement.children import Program; "
        "from p2prl.controls.awake_process import KeptAwake\n"
        "kept = KeptAwake(Program(command=sys.argv[1:]).start, missing='')\n"
        "while not kept.is_held: kept.follow(wanted=True)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", held, *program(tool).command]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "held\n"
        holder = psutil.Process(pids(tool)[0])
        family = [holder, *holder.children(recursive=True)]
        worker.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_the_cause_is_what_the_tool_says(tool: Path) -> None:
    tool.write_text("#!/bin/sh\necho Failed to connect to bus: No such file or directory. >&2\nexit 1\n")
    time = 0.0
    kept = KeptAwake(program(tool).start, missing="", now=lambda: time)
    settled(kept, lambda: kept.missing != "")
    assert kept.missing == "Failed to connect to bus: No such file or directory"
    assert not kept.is_held
    tool.write_text(TOOL)
    kept.follow(wanted=True)
    assert not kept.is_held, "tried again after a while"
    time += RESTART_S
    settled(kept, lambda: kept.is_held)
    assert kept.missing == ""
    kept.close()


def test_systems_that_offer_no_way() -> None:
    there: Callable[[str], str | None] = lambda name: f"/usr/bin/{name}"  # noqa: E731 - typed
    assert awake_missing("linux", "6.8.0-generic", there) == ""
    assert awake_missing("darwin", "23.1.0", there) == ""
    assert awake_missing("linux", "6.8.0", lambda _: None) == "systemd-inhibit is not installed"
    assert "WSL2 cannot hold that off" in awake_missing("linux", "5.15.0-microsoft-standard-WSL2", there)
    assert "no way" in awake_missing("freebsd14", "14.0", there)
    kept = KeptAwake(missing="systemd-inhibit is not installed")
    kept.follow(wanted=True)
    assert (kept.is_held, kept.missing) == (False, "systemd-inhibit is not installed")
