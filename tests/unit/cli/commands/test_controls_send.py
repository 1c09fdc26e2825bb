"""The owner's commands as typed: right and wrong ones, with no worker, one, two, a dead one and one that hangs."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from p2prl.config.owner_limits import config_file, config_text
from p2prl.config.worker_folder import claim_worker_folder
from p2prl.controls.control_socket import NAME, ControlSocket
from p2prl.controls.limits import Limits
from p2prl.controls.live_controls import LiveControls
from p2prl.controls.messages import Answer, Request
from p2prl.controls.rules import Readings
from p2prl.errors import ConfigError, MachineError
from tests.command_doc import json_keys
from tests.unit.cli.invocation import invoke, json_of


class CalmSensors:
    def read(self, *, desktop: bool, names: tuple[str, ...] = ()) -> Readings:
        return Readings(battery_percent=101.0)

    def missing(self) -> dict[str, str]:
        return {"gpu.temp": "there is no card"}


@contextmanager
def worker(home: Path, seat: str, answer: Callable[[Request], Answer] | None = None) -> Iterator[LiveControls]:
    """A worker's controls in a thread of this process."""
    folder = home / seat
    folder.mkdir(parents=True, exist_ok=True)
    listen = ControlSocket(folder)
    controls = LiveControls(folder, Limits(), CalmSensors(), listen=listen)
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            listen.serve(0.05, answer or controls.answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield controls
    finally:
        ended.set()
        thread.join()
        listen.close()


def failed(*arguments: object) -> tuple[BaseException, str]:
    """The error of a command and what it printed before."""
    result = invoke(*arguments)
    assert result.exception is not None
    return result.exception, result.output


@pytest.mark.parametrize("command", ["pause", "resume", "finish", "stop"])
def test_without_a_worker_a_command_says_so(tmp_path: Path, command: str) -> None:
    error, _ = failed(command, "--home", tmp_path)
    assert isinstance(error, MachineError)
    assert str(error) == f"no worker runs under {tmp_path}"
    error, _ = failed(command, "--home", tmp_path, "--seat", "seat-7")
    assert str(error) == f"no worker runs in {tmp_path / 'seat-7'}"


def test_a_killed_workers_socket_is_no_worker(tmp_path: Path) -> None:
    (tmp_path / "seat-1").mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "seat-1" / NAME))
    error, _ = failed("pause", "--home", tmp_path)
    assert "no worker runs" in str(error)
    assert invoke("limits", "--home", tmp_path).output.rstrip().endswith("No worker runs; the next one keeps to these.")


def test_all_workers_hear_a_command_and_one_alone_by_its_seat(tmp_path: Path) -> None:
    with worker(tmp_path, "seat-1") as first, worker(tmp_path, "validator-1") as second:
        document = json_of("pause", "--for", "2h", "--home", tmp_path)
        assert json_keys("p2prl pause") <= set(document)
        assert {name: each["state"] for name, each in document["workers"].items()} == {
            "seat-1": "paused",
            "validator-1": "paused",
        }
        assert set(json_of("resume", "--home", tmp_path, "--seat", "validator-1")) == json_keys("p2prl resume")
        json_of("pause", "--home", tmp_path)
        assert invoke("resume", "--home", tmp_path, "--seat", "seat-1").output.split() == ["seat-1", "starting"]
        assert (first.order.rests, second.order.rests) == (False, True)
        assert "until p2prl resume" in invoke("pause", "--home", tmp_path).output
        assert first.order.rests


def test_one_worker_by_the_name_of_its_card(tmp_path: Path) -> None:
    def computes(seat: str, card: str) -> None:
        status = {"pid": os.getpid(), "engine": {"device": card}}
        (tmp_path / seat / "run").mkdir()
        (tmp_path / seat / "run" / "status.json").write_text(json.dumps(status))

    error, _ = failed("pause", "--device", "3060", "--home", tmp_path)
    assert str(error) == f"no worker under {tmp_path} has begun to compute"
    folders = [claim_worker_folder(tmp_path), claim_worker_folder(tmp_path)]
    with worker(tmp_path, "seat-1") as first, worker(tmp_path, "seat-2") as second:
        computes("seat-1", "NVIDIA GeForce RTX 3060")
        computes("seat-2", "NVIDIA GeForce RTX 4090")
        json_of("pause", "--device", "rtx 4090", "--home", tmp_path)
        assert (first.order.rests, second.order.rests) == (False, True)
        json_of("limits", "gpu.temp=70C", "--device", "3060", "--home", tmp_path)
        assert first.limits.value("gpu.temp") == 70.0
        assert second.limits.value("gpu.temp") == 0.0
        error, _ = failed("pause", "--device", "RTX", "--home", tmp_path)
        assert "2 cards are called 'RTX': seat-1 is NVIDIA GeForce RTX 3060" in str(error)
        error, _ = failed("pause", "--device", "3060", "--seat", "seat-1", "--home", tmp_path)
        assert str(error) == "--seat and --device both name a worker"
    for folder in folders:
        folder.release()


def test_finish_and_stop_answer_as_the_others_do(tmp_path: Path) -> None:
    with worker(tmp_path, "seat-1"):
        assert set(json_of("finish", "--home", tmp_path)) == json_keys("p2prl finish")
        assert set(json_of("stop", "--home", tmp_path)) == json_keys("p2prl stop")


def test_one_worker_that_hangs_keeps_no_other_from_hearing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.controls.control_socket.ANSWER_S", 0.2)
    (tmp_path / "seat-0").mkdir()
    with socket.socket(socket.AF_UNIX) as silent, worker(tmp_path, "seat-1") as second:
        silent.bind(str(tmp_path / "seat-0" / NAME))
        silent.listen()
        error, printed = failed("pause", "--home", tmp_path)
        assert second.order.rests
    assert "seat-1  paused by you" in printed
    assert "seat-0 does not answer" in str(error)


def test_an_answer_from_another_version_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.controls.control_socket.encode_line", lambda message: b'{"colour":"red"}\n')
    monkeypatch.setattr("p2prl.controls.control_socket.read_request", lambda line: msgspec.json.decode(line))
    with worker(tmp_path, "seat-1", lambda _: Answer()):
        error, _ = failed("resume", "--home", tmp_path)
    assert "answers nonsense" in str(error)


@pytest.mark.parametrize("text", ["2 hours", "off", "0s", "-1h", "900d", "h"])
def test_a_wrong_duration_names_the_right_form(tmp_path: Path, text: str) -> None:
    error, _ = failed("pause", f"--for={text}", "--home", tmp_path)
    assert isinstance(error, ConfigError)
    assert str(error).startswith(f"--for {text} is not understood: it takes a duration")
    assert "2h" in error.remedy


@pytest.mark.parametrize(
    ("change", "message", "remedy"),
    [
        ("gpu.temp", "'gpu.temp' is not NAME=VALUE", "gpu.temp=75C"),
        ("gpu.temp=", "is not NAME=VALUE", "gpu.temp=75C"),
        ("gpu.tmp=75C", "there is no limit 'gpu.tmp'", "Did you mean gpu.temp?"),
        ("gpu.temp=hot", "gpu.temp=hot is not understood", "gpu.temp=75C"),
        ("ram=-3GB", "ram=-3GB is not understood", "ram=8GB"),
    ],
)
def test_a_wrong_limit_changes_nothing(tmp_path: Path, change: str, message: str, remedy: str) -> None:
    with worker(tmp_path, "seat-1") as running:
        error, _ = failed("limits", "disk=4GB", change, "--home", tmp_path)
        assert running.limits == Limits()
    assert message in str(error)
    assert remedy in getattr(error, "remedy", "")
    assert not (tmp_path / "limits.json").exists()


def test_limits_are_kept_and_followed(tmp_path: Path) -> None:
    assert "Kept for the next start" in invoke("limits", "ram=4GB", "--home", tmp_path).output
    with worker(tmp_path, "seat-1") as running:
        shown = invoke("limits", "set", "gpu.temp=75C", "--home", tmp_path).output
        assert "Kept, and followed by what runs now." in shown
        assert "seat-1: gpu.temp cannot be kept here: there is no card" in shown
        assert running.limits.value("gpu.temp") == 75.0
        alone = invoke("limits", "idle=10m", "--seat", "seat-1", "--home", tmp_path).output
        assert "Followed by this worker until it ends." in alone
        error, _ = failed("limits", "idle=10m", "--seat", "seat-2", "--home", tmp_path)
        assert "no worker runs in" in str(error)
    document = json_of("limits", "--home", tmp_path)
    assert json_keys("p2prl limits") <= set(document)
    assert document["limits"]["gpu.temp"] == {"value": "75C", "origin": "command"}
    assert document["limits"]["ram"]["value"] == "4GB"
    assert document["limits"]["idle"]["value"] == "off"


@pytest.mark.parametrize("command", [("limits",), ("config", "show")])
def test_limits_go_to_standard_output_for_a_pipe(tmp_path: Path, command: tuple[str, ...]) -> None:
    result = invoke(*command, "--home", tmp_path)
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(Limits().settings)
    assert "gpu.temp" not in result.stderr


def test_workers_with_different_limits_are_shown_apart(tmp_path: Path) -> None:
    with worker(tmp_path, "seat-1"), worker(tmp_path, "seat-2"), worker(tmp_path, "seat-3"):
        invoke("limits", "ram=4GB", "--seat", "seat-2", "--home", tmp_path)
        shown = invoke("limits", "--home", tmp_path).output
    assert "seat-1, seat-3:" in shown
    assert "seat-2:" in shown
    assert shown.count("gpu.power") == 2


def test_default_gives_the_files_value_back(tmp_path: Path) -> None:
    layered = Limits.layered({"file": {"ram": "4GB"}, "command": {"ram": "8GB", "idle": "5m"}})
    assert layered.value("ram") == 8.0
    changed = layered.changed({"ram": "default", "idle": "default"})
    assert changed.document()["ram"] == {"value": "4GB", "origin": "file"}
    assert changed.document()["idle"] == {"value": "off", "origin": "default"}
    assert replace(layered, below={}).changed({"ram": "default"}).document()["ram"]["origin"] == "default"


def test_the_file_is_shown_written_once_and_checked(tmp_path: Path) -> None:
    assert "not there; p2prl config init writes one" in invoke("config", "show", "--home", tmp_path).output
    document = json_of("config", "init", "--home", tmp_path)
    assert json_keys("p2prl config init") <= set(document)
    error, _ = failed("config", "init", "--home", tmp_path)
    assert "is there already" in str(error)
    assert json_keys("p2prl config show") <= set(json_of("config", "show", "--home", tmp_path))
    plain = invoke("config", "show", "--no-origin", "--home", tmp_path).output
    assert "default" not in plain
    config_file(tmp_path).write_text('[limits]\nbatery = "never"\n')
    error, _ = failed("config", "show", "--home", tmp_path)
    assert getattr(error, "remedy", "") == "Did you mean battery?"


def test_remembered_limits_that_no_longer_exist_name_their_file(tmp_path: Path) -> None:
    (tmp_path / "limits.json").write_text(json.dumps({"gpu.fans": "silent"}))
    error, _ = failed("limits", "--home", tmp_path)
    assert str(tmp_path / "limits.json") in str(error)
    assert f"delete {tmp_path / 'limits.json'}" in getattr(error, "remedy", "")


def test_a_limit_given_twice_is_refused(tmp_path: Path) -> None:
    error, _ = failed("limits", "yield=games", "yield=programs", "--home", tmp_path)
    assert "yield is given twice" in str(error)
    assert not (tmp_path / "limits.json").exists()


@pytest.mark.parametrize("seat", ["../x", "/etc", "a/seat-1", ".", "..", "seat"])
def test_a_seat_is_a_folder_of_the_home(seat: str, tmp_path: Path) -> None:
    error, _ = failed("pause", "--seat", seat, "--home", tmp_path)
    assert "is not a worker's folder" in str(error)


def test_a_file_that_is_not_text_and_a_home_that_is_no_folder_are_named(tmp_path: Path) -> None:
    config_file(tmp_path).write_text('[limits]\nbattery = "never"\n', encoding="utf-16")
    error, _ = failed("limits", "--home", tmp_path)
    assert "is not UTF-8 text" in str(error)
    config_file(tmp_path).unlink()
    (tmp_path / "limits.json").mkdir()
    (tmp_path / "file").touch()
    for home, remedy in ((tmp_path, "permissions"), (tmp_path / "limits.json" / ".." / "file", "another folder")):
        error, _ = failed("limits", "--home", home)
        assert "Errno" not in str(error)
        assert "damaged" not in str(error)
        assert remedy in getattr(error, "remedy", "")


def test_the_commented_file_is_utf_8_in_any_locale(tmp_path: Path) -> None:
    invoke("config", "init", "--home", tmp_path)
    assert config_file(tmp_path).read_bytes().decode() == config_text()
