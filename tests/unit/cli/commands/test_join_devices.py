"""`p2prl join` on several devices: one worker for each, one screen, one Ctrl-C, one exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import typer
from rich.console import Console

from p2prl.cli.commands.join_several_devices import DeviceGroup, devices_of, exit_code_of, given_options
from p2prl.cli.views.devices_view import DeviceRow, DevicesScreen, devices_line
from p2prl.errors import ConfigError, MachineError
from p2prl_lab.testing.swarm_processes import wait_until
from tests.unit.cli.invocation import commands

WORKER = """
import json, os, signal, sys
from pathlib import Path
home, device = Path(sys.argv[1]), sys.argv[sys.argv.index("--device") + 1]
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
seat = next(path for n in range(1, 9) if not (path := home / f"seat-{n}").exists())
(seat / "run").mkdir(parents=True)
status = {"pid": os.getpid(), "run": "sums", "state": "sampling", "version": 3, "tokens_per_s": 250.0,
          "groups": {"verified": 5, "delivered": 2}, "peers": {"learner": 1}}
(seat / "run" / "status.json").write_text(json.dumps(status))
print("run sums (manifest verified)", file=sys.stderr, flush=True)
print(f"Your key {seat.name}", file=sys.stderr, flush=True)
print(json.dumps({"event": "phase", "name": "importing torch", "detail": "", "time": 1.0}), flush=True)
if device == "cuda:7":
    print("p2prl: there is no cuda:7", file=sys.stderr, flush=True)
    sys.exit(4)
for _ in range(2):
    signal.sigwait({signal.SIGINT})
    print(json.dumps({"event": "notice", "text": "Ctrl-C", "time": 1.0}), flush=True)
print(json.dumps({"state": "stopped", "groups": {"verified": 6}}), flush=True)
sys.exit(130)
"""
"""A worker that knows nothing but how to say what it does, and that ends at the second Ctrl-C."""


def group_of(home: Path, *devices: str, events: list[Mapping[str, Any]] | None = None) -> DeviceGroup:
    seen: list[Mapping[str, Any]] = [] if events is None else events
    return DeviceGroup([sys.executable, "-c", WORKER, str(home)], devices, home, on_event=seen.append)


def test_each_device_has_a_worker_and_its_folder_in_their_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[Mapping[str, Any]] = []
    group = group_of(tmp_path, "cpu", "cuda:0", "cpu", events=events)
    with group.ended_at_last():
        assert list(group.started()) == ["cpu #1", "cuda:0", "cpu #2"]
        wait_until(lambda: all(row.status for row in group.rows()), seconds=20, what="status files")
        assert [row.state for row in group.rows()] == ["sampling"] * 3
        assert [event["device"] for event in events] == ["cpu #1", "cuda:0", "cpu #2"]
        pids = [json.loads((tmp_path / f"seat-{n}/run/status.json").read_text())["pid"] for n in (1, 2, 3)]
        assert pids == [worker.process.pid for worker in group.workers]
        group.interrupt()
        wait_until(lambda: len(events) == 6, seconds=20, what="a word about Ctrl-C")
        assert group.is_alive(), "one Ctrl-C is one Ctrl-C"
    assert [worker.document()["exit_code"] for worker in group.workers] == [130] * 3
    assert [row.status["groups"] for row in group.rows()] == [{"verified": 6}] * 3
    told = capsys.readouterr().err.splitlines()
    assert told.count("run sums (manifest verified)") == 1, "what all of them say is said once"
    assert {"Your key seat-1", "cuda:0: Your key seat-2", "cpu #2: Your key seat-3"} <= set(told)


def test_one_that_fails_is_told_and_the_others_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    group = group_of(tmp_path, "cpu", "cuda:7")
    with group.ended_at_last():
        assert len(list(group.started())) == 2
        wait_until(lambda: group.rows()[1].exit_code is not None, seconds=20, what="an end")
        assert group.is_alive()
        assert group.rows()[1].state.endswith("exit code 4")
    assert exit_code_of([worker.process.returncode for worker in group.workers]) == 4
    told = capsys.readouterr().err
    assert "cuda:7: p2prl: there is no cuda:7" in told
    assert "The worker of cuda:7 has ended with exit code 4" in told


def test_a_ctrl_c_during_the_start_starts_no_more(tmp_path: Path) -> None:
    group = group_of(tmp_path, "cpu", "cpu", "cpu")
    with group.ended_at_last():
        names = group.started()
        assert [next(names), next(names)] == ["cpu #1", "cpu #2"]
        group.interrupt()
        assert list(names) == []
    assert len(group.workers) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
def test_the_workers_end_with_the_process_that_started_them(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.unit.cli.commands.test_join_devices import group_of\n"
        "group = group_of(Path(sys.argv[1]), 'cpu', 'cpu')\n"
        "list(group.started()); print(*(worker.process.pid for worker in group.workers), flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=10)
    assert alive == []


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, 0], 0), ([9, 9], 9), ([9, 0], 9), ([130, 9], 130), ([0, 130], 130), ([9, 4], 4), ([75, 4], 75), ([0, -9], 1)],
)
def test_the_exit_code_is_the_first_failure(codes: list[int], code: int) -> None:
    assert exit_code_of(codes) == code


def test_devices_are_told_apart() -> None:
    assert devices_of("auto") == ("auto",)
    assert devices_of("cuda:1") == ("cuda:1",)
    assert devices_of("cuda:0, cuda:1,cpu,cpu") == ("cuda:0", "cuda:1", "cpu", "cpu")
    for wrong in ("cuda:0,", "cuda,cuda:1", "cuda:0,gpu1", "auto,cpu"):
        with pytest.raises(ConfigError, match="is not a device of a list"):
            devices_of(wrong)
    with pytest.raises(ConfigError, match="names cuda:1 twice"):
        devices_of("cuda:1,cuda:0,cuda:1")


def test_all_counts_the_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    def counting(printed: str) -> None:
        done = subprocess.CompletedProcess([], 0, stdout=f"a notice\n{printed}\n", stderr="")
        monkeypatch.setattr("p2prl.cli.commands.join_several_devices.subprocess.run", lambda *_, **__: done)

    counting('["RTX 3060", "RTX 3060", "RTX 4090"]')
    assert devices_of("all") == ("cuda:0", "cuda:1", "cuda:2")
    for nothing in ("[]", "Traceback"):
        counting(nothing)
        with pytest.raises(MachineError, match="no CUDA card"):
            devices_of("all")


def test_cards_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    names = '["NVIDIA GeForce RTX 3060", "NVIDIA GeForce RTX 4090"]'
    done = subprocess.CompletedProcess([], 0, stdout=f"{names}\n", stderr="")
    monkeypatch.setattr("p2prl.cli.commands.join_several_devices.subprocess.run", lambda *_, **__: done)
    assert devices_of("rtx 3060") == ("cuda:0",)
    assert devices_of("4090, 3060") == ("cuda:1", "cuda:0")
    with pytest.raises(ConfigError, match="2 cards are called 'RTX'"):
        devices_of("RTX")
    with pytest.raises(ConfigError, match="no card here is called 'A100'"):
        devices_of("A100")
    with pytest.raises(ConfigError, match="names cuda:1 twice"):
        devices_of("4090,cuda:1")


def test_options_of_the_machine_are_shared_and_others_passed_on() -> None:
    command = commands()["p2prl join"]
    given = ["LINK", "--device", "cpu,cpu", "--upload-mbit", "5", "--share", "0.5", "--public", "--events", "--json",
             "--listen", "/ip4/0.0.0.0/tcp/0", "--listen", "/ip6/::/tcp/0", "--disk-gb", "9"]  # fmt: skip
    passed = given_options(cast("typer.Context", command.make_context("join", given)), 2)
    assert passed[0] == "LINK"
    pairs = list(zip(passed, [*passed[1:], ""], strict=True))
    assert {("--upload-mbit", "2.5"), ("--disk-gb", "4.5"), ("--share", "0.5")} <= set(pairs)
    assert [value for name, value in pairs if name == "--listen"] == ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"]
    assert "--public" in passed
    assert not {"--device", "--events", "--json", "--threads"} & set(passed)


def drawn(*rows: DeviceRow, width: int) -> list[str]:
    out = StringIO()
    Console(file=out, width=width, force_terminal=False).print(DevicesScreen(rows, now=0.0))
    return out.getvalue().splitlines()


ROWS = (
    DeviceRow(
        device="cuda:0",
        phase="",
        exit_code=None,
        status={"run": "sums", "state": "sampling", "version": 3, "tokens_per_s": 1234.0, "peers": {"learner": 1},
                "groups": {"verified": 40, "delivered": 3, "generated": 2}},
    ),
    DeviceRow(device="cuda:1", phase="importing torch", exit_code=None, status={}),
    DeviceRow(device="cuda:2", phase="", exit_code=4, status={"tokens_per_s": 9.0}),
)  # fmt: skip


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_screen_has_a_row_for_each_device_at_any_width(width: int) -> None:
    shown = drawn(*ROWS, width=width)
    assert shown[0].split() == ["sums", "3", "workers", "1,234", "tokens/s"]
    assert max(map(len, shown)) <= width
    assert [line.split()[0] for line in shown[2:5]] == ["cuda:0", "cuda:1", "cuda:2"]
    assert shown[2].split()[-2:] == (["40", "5"] if width >= 60 else ["1,234", "40"])
    if width >= 60:
        assert "importing torch" in shown[3]
        assert "exit code 4" in shown[4]
    assert any(line.startswith("pause") for line in shown)


def test_the_line_without_a_terminal_has_every_device() -> None:
    line = devices_line(ROWS)
    assert line.startswith("1,234 tokens/s")
    assert "cuda:0 sampling, 40 verified" in line
    assert "cuda:1 importing torch, 0 verified" in line


def test_hints_end_with_the_last_worker() -> None:
    assert not any(line.startswith("pause") for line in drawn(ROWS[2], width=80))
