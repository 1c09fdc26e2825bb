"""Processes of a demo: their ends are told with the reason, and none outlives the demo, whatever ends it."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from p2prl.cli.commands.demo import demo_line, demo_panel, public_lines
from p2prl.cli.commands.demo_processes import DemoProcesses, RoleProcess
from p2prl.errors import MachineError
from p2prl.exit_codes import RUN_FINISHED
from p2prl_lab.testing.swarm_processes import wait_until


def add(demo: DemoProcesses, name: str, *arguments: str) -> RoleProcess:
    """A process of a demo, with its log."""
    log = (demo.folder / f"{name}.log").open("wb")
    process = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
    role = RoleProcess(name, process, log)
    demo.roles.append(role)
    return role


def ended(demo: DemoProcesses, name: str, code: str) -> RoleProcess:
    role = add(demo, name, sys.executable, "-c", code)
    role.process.wait(60)
    return role


def test_a_demo_whose_volunteers_have_all_ended_says_which_and_why(tmp_path: Path) -> None:
    demo = DemoProcesses(tmp_path)
    with demo.stopped_at_end():
        learner = add(demo, "learner", "sleep", "600")
        add(demo, "validator", "sleep", "600")
        refused = add(demo, "volunteer-1", sys.executable, "-m", "p2prl", "join", "p2prl://chain@abc")
        second = add(demo, "volunteer-2", "sleep", "600")
        refused.process.wait(60)
        (told,) = demo.ended_early()
        cut_off = "the link's run digest has 3 characters instead of 52: it was cut off"
        assert told == f"volunteer-1 has ended with status 3: {cut_off}"
        assert demo.ended_early() == []
        second.process.kill()
        second.process.wait(60)
        with pytest.raises(
            MachineError, match="volunteer-2 has ended with status -9, and 1 process that sampled"
        ) as caught:
            demo.ended_early()
        assert str(tmp_path / "logs" / "volunteer-2.log") in caught.value.remedy
    assert learner.process.returncode is not None


def test_volunteers_of_a_finished_run_are_no_failure(tmp_path: Path) -> None:
    demo = DemoProcesses(tmp_path)
    with demo.stopped_at_end():
        add(demo, "learner", "sleep", "600")
        ended(demo, "volunteer-1", f"raise SystemExit({RUN_FINISHED})")
        ended(demo, "board", "raise SystemExit('the port is taken')")
        assert demo.ended_early() == ["board has ended with status 1: the port is taken"]


def test_a_learner_that_failed_is_named_with_its_newest_error(tmp_path: Path) -> None:
    demo = DemoProcesses(tmp_path)
    with demo.stopped_at_end():
        lines = "['p2prl: an old one', 'p2prl: disk full', '       Free some space.']"
        learner = ended(demo, "learner", f"print(*{lines}, sep='\\n'); raise SystemExit(4)")
        with pytest.raises(MachineError, match=r"learner has ended with status 4: disk full$"):
            demo.check_ended_well(learner)


def test_pages_are_known_once_their_roles_are_up(tmp_path: Path) -> None:
    demo = DemoProcesses(tmp_path)
    with demo.stopped_at_end():
        for name, port in (("index", 4001), ("board", 4002)):
            add(
                demo,
                name,
                "sh",
                "-c",
                f"sleep 0.2; echo '{name}      http://127.0.0.1:{port}   Ctrl-C stops it'; sleep 600",
            )
        assert demo.urls() == {"index": "http://127.0.0.1:4001", "board": "http://127.0.0.1:4002"}
        told = public_lines(tmp_path, demo.urls())
        assert "take part  p2prl join --any --index http://127.0.0.1:4001" in told
    broken = DemoProcesses(tmp_path / "broken")
    broken.folder.mkdir()
    with broken.stopped_at_end():
        ended(broken, "index", "raise SystemExit('p2prl: the port is taken')")
        with pytest.raises(MachineError, match="index has ended with status 1: the port is taken"):
            broken.urls()


@pytest.mark.parametrize(("updates", "shown"), [(0, "update 7"), (20, "update 7/20")])
def test_a_demo_without_end_shows_no_end(updates: int, shown: str) -> None:
    metrics = [{"step": 7, "reward": 0.5, "version": 3, "staleness_p50": 1.0, "staleness_max": 2.0}]
    assert demo_line(metrics, updates).startswith(f"{shown}  reward")
    drawn = Console(width=100, record=True, file=io.StringIO())
    drawn.print(demo_panel([], metrics, updates))
    text = drawn.export_text()
    assert f"{shown}   policy v3" in text
    assert ("#" in text) == (updates > 0)


PROGRAM = """
import subprocess, sys, time
from pathlib import Path
from p2prl.cli.commands.demo_processes import DemoProcesses, RoleProcess
folder = Path(sys.argv[1])
demo = DemoProcesses(folder)
stubborn = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
try:
    with demo.stopped_at_end():
        for name, code in (("learner", "import time; time.sleep(600)"), ("board", stubborn)):
            log = (folder / name).open("wb")
            process = subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log, start_new_session=True)
            demo.roles.append(RoleProcess(name, process, log))
        while not (folder / "board").stat().st_size:
            time.sleep(0.05)
        print("ready", flush=True)
        time.sleep(600)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_processes_end_with_their_demo(tmp_path: Path, number: signal.Signals) -> None:
    program = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, start_new_session=True) as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline() == b"ready\n"
        children = psutil.Process(demo.pid).children()
        assert len(children) == 2
        os.kill(demo.pid, number)
        wait_until(lambda: sum(map(_lives, children)) == 1, seconds=30, what="the learner's end")
        os.kill(demo.pid, number)  # the board takes its time, and the user does not
        assert demo.wait(10) == 130
    assert not any(map(_lives, children))


def _lives(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
