"""The controls over a real socket, with a hand-driven clock, fake sensors and a worker that notes its orders."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from p2prl.controls import messages
from p2prl.controls.awake_process import KeptAwake
from p2prl.controls.control_socket import NAME, ControlSocket, ask, peer_user
from p2prl.controls.energy import EnergyCounter
from p2prl.controls.limits import Limits
from p2prl.controls.live_controls import LiveControls, load_pause
from p2prl.controls.messages import MOST_REQUEST_BYTES, read_answer
from p2prl.controls.owner_values import Price
from p2prl.controls.rules import Order, Pause, Readings
from p2prl.errors import MachineError, RemoteProtocolError


class FakeWorker:
    def __init__(self) -> None:
        self.orders: list[Order] = []
        self.limits: list[Limits] = []
        self.told: list[str] = []
        self.idle = False

    def obey(self, order: Order) -> None:
        self.orders.append(order)

    def has_followed(self, order: Order) -> bool:
        return True

    def limits_changed(self, limits: Limits) -> None:
        self.limits.append(limits)

    def is_idle(self) -> bool:
        return self.idle

    def finish(self) -> None:
        self.told.append("finish")

    def stop(self) -> None:
        self.told.append("stop")


class FakeSensors:
    def __init__(self) -> None:
        self.now = Readings(game="", battery_percent=101.0)
        self.names: tuple[str, ...] = ()

    def read(self, *, desktop: bool, names: tuple[str, ...] = ()) -> Readings:
        self.names = names
        return self.now

    def missing(self) -> Mapping[str, str]:
        return {"idle": "no desktop runs here"}


class Rig:
    def __init__(self, folder: Path) -> None:
        self.folder, self.time = folder, 1_800_000_000.0
        self.sensors, self.worker = FakeSensors(), FakeWorker()
        self.notices: list[str] = []
        self.socket: ControlSocket | None = None
        self.start()

    def start(self) -> None:
        if self.socket is not None:
            self.socket.close()
        self.socket = ControlSocket(self.folder)
        self.controls = LiveControls(
            self.folder,
            Limits(),
            self.sensors,
            listen=self.socket,
            now=lambda: self.time,
            on_notice=self.notices.append,
        )

    def ask(self, request: messages.Request) -> messages.Answer:
        """Over the socket, with the worker's end in another thread."""
        assert self.socket is not None
        server = threading.Thread(target=self.socket.serve, args=(30.0, self.controls.answer))
        server.start()
        answer = ask(self.folder, request)
        server.join()
        assert answer is not None
        return answer

    def send(self, data: bytes) -> bytes:
        """Bytes as they are; the answer, if any."""
        assert self.socket is not None
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.folder / NAME))
            client.settimeout(30)
            client.sendall(data)
            assert self.socket.serve(30.0, self.controls.answer)
            with suppress(ConnectionResetError):  # closed with bytes unread
                return client.recv(1 << 16)
        return b""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    assert made.socket is not None
    made.socket.close()


def test_only_the_owner_can_open_it(rig: Rig) -> None:
    mode = (rig.folder / NAME).stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_user(ours) == os.geteuid()


def test_another_user_gets_no_answer(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.controls.control_socket.peer_user", lambda _: os.geteuid() + 1)
    assert rig.send(b'{"type":"stop"}\n') == b""
    assert rig.controls.answer(messages.StatusRequest()).state == "starting"
    with pytest.raises(MachineError, match="another user"):
        ask(rig.folder, messages.StatusRequest())


def test_pause_and_resume(rig: Rig) -> None:
    rig.controls.attach(rig.worker)
    answer = rig.ask(messages.PauseRequest(for_s=7_200.0))
    assert (answer.error, answer.state, answer.until, answer.relays) == ("", "paused", rig.time + 7_200.0, False)
    assert rig.worker.orders[-1].rests
    assert rig.ask(messages.ResumeRequest()).state == "working"
    assert rig.worker.orders[-1] == Order()
    assert rig.notices == ["Resting: paused by you. p2prl resume ends the pause.", "Working again."]


def test_a_pause_outlives_the_worker_and_ends_in_time(rig: Rig) -> None:
    rig.ask(messages.PauseRequest(for_s=100.0, keep_relaying=True))
    rig.time += 50
    rig.start()
    rig.controls.tick()
    rig.controls.attach(rig.worker)
    assert rig.worker.orders[-1].rests
    assert rig.ask(messages.StatusRequest()).relays
    rig.time += 50
    rig.controls.tick()
    assert rig.worker.orders[-1] == Order()
    assert load_pause(rig.folder) is None


def test_finish_and_stop_before_and_after_the_worker_is_there(rig: Rig) -> None:
    rig.ask(messages.PauseRequest())
    assert rig.ask(messages.FinishRequest()).state == "ending"
    assert load_pause(rig.folder) is None, "the next start works"
    rig.controls.attach(rig.worker)
    assert rig.worker.told == ["finish"]
    rig.ask(messages.StopRequest())
    assert rig.worker.told == ["finish", "stop"]


def test_limits_over_the_socket_act_at_the_next_reading(rig: Rig) -> None:
    rig.controls.attach(rig.worker)
    rig.controls.tick()
    answer = rig.ask(messages.LimitsRequest(changes={"gpu.temp": "70C", "idle": "10m"}))
    assert answer.limits["gpu.temp"] == messages.LimitShown(value="70C", origin="command")
    assert answer.unread == [
        "gpu.temp cannot be kept here: this machine has no sensor for it",
        "idle cannot be kept here: no desktop runs here",
    ]
    assert rig.worker.limits[-1].value("gpu.temp") == 70.0
    rig.sensors.now = replace(rig.sensors.now, temperature_c=90.0)
    rig.controls.tick()
    assert rig.worker.orders[-1].rests
    assert rig.ask(messages.StatusRequest()).reason.startswith("too hot: 90 °C")


def test_a_worker_without_an_engine_says_nothing_of_cards(rig: Rig) -> None:
    seeding = LiveControls(rig.folder, Limits(), rig.sensors, computes=False)
    answer = seeding.answer(messages.LimitsRequest(changes={"gpu.temp": "70C", "gpu.memory": "2GB", "idle": "10m"}))
    assert answer.unread == ["idle cannot be kept here: no desktop runs here"]


def test_a_wrong_limit_changes_nothing(rig: Rig) -> None:
    answer = rig.ask(messages.LimitsRequest(changes={"ram": "4GB", "gpu.tmp": "70C"}))
    assert "no limit 'gpu.tmp'" in answer.error
    assert answer.remedy == "Did you mean gpu.temp?"
    assert rig.ask(messages.StatusRequest()).limits["ram"].origin == "default"


def test_controls_that_fail_end_the_worker(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*, desktop: bool, names: tuple[str, ...]) -> Readings:
        raise ZeroDivisionError

    rig.controls.attach(rig.worker)
    monkeypatch.setattr(rig.sensors, "read", broken)
    rig.controls.start()
    rig.controls.close()
    assert rig.worker.told == ["stop"]
    assert "controls failed" in rig.notices[-1]


class FakeAwake(KeptAwake):
    """Notes what is wanted, and cannot do it where `missing` says so."""

    def __init__(self) -> None:
        super().__init__(missing="")
        self.wanted: list[bool] = []

    def follow(self, *, wanted: bool) -> None:
        self.wanted.append(wanted)


def test_the_machine_is_kept_awake_while_there_is_work(rig: Rig) -> None:
    awake = FakeAwake()
    controls = LiveControls(
        rig.folder, Limits(), rig.sensors, now=lambda: rig.time, on_notice=rig.notices.append, awake=awake
    )
    controls.attach(rig.worker)
    controls.tick()
    controls.answer(messages.LimitsRequest(changes={"awake": "yes"}))
    controls.tick()
    controls.answer(messages.PauseRequest())
    controls.tick()
    controls.answer(messages.ResumeRequest())
    controls.tick()
    rig.worker.idle = True
    controls.tick()
    assert awake.wanted == [False, True, False, True, False]
    assert controls.answer(messages.StatusRequest()).unread == []
    rig.notices.clear()
    awake.missing = "systemd-inhibit is not installed"
    controls.tick()
    controls.tick()
    assert rig.notices == ["This machine is not kept awake: systemd-inhibit is not installed."]
    unread = controls.answer(messages.StatusRequest()).unread
    assert unread == ["awake cannot be kept here: systemd-inhibit is not installed"]


def test_named_programs_and_energy_are_asked_for_and_told(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monotonic = 100.0
    monkeypatch.setattr("p2prl.controls.live_controls.time.monotonic", lambda: monotonic)
    rig.controls.answer(messages.LimitsRequest(changes={"yield": "program:obs", "energy.price": "0.3"}))
    assert rig.sensors.names == ("obs",)
    for second in range(4):
        monotonic = 100.0 + second
        rig.sensors.now = replace(rig.sensors.now, energy=(EnergyCounter("a", "processor", 50.0 * second),), named=())
        if second == 3:
            rig.controls.answer(messages.PauseRequest())
        rig.controls.tick()
    assert rig.controls.energy.joules == 100.0, "the last second was a rest"
    assert rig.controls.price == Price(0.3)
    rig.sensors.now = Readings(battery_percent=101.0, named=())
    unread = rig.ask(messages.LimitsRequest(changes={})).unread
    assert unread == ["energy.price has nothing to be beside: this machine has no sensor for it"]


@pytest.mark.parametrize(
    "data",
    [
        b"x" * (MOST_REQUEST_BYTES + 4_096),
        b'{"type":"reboot"}\n',
        b"\n",
        b'POST /stop HTTP/1.1\r\nHost: localhost\r\n\r\n{"type":"stop"}\n',  # a page's, through a browser
    ],
)
def test_nonsense_gets_an_error_and_the_worker_goes_on(rig: Rig, data: bytes) -> None:
    answer = read_answer(rig.send(data).strip())
    assert answer.error
    assert rig.ask(messages.StatusRequest()).state == "starting"


def test_a_silent_client_does_not_hold_the_worker(rig: Rig) -> None:
    assert rig.socket is not None
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(rig.folder / NAME))
        assert rig.socket.serve(30.0, rig.controls.answer)


def test_the_thread_answers_and_ends(rig: Rig) -> None:
    rig.controls.start()
    answer = ask(rig.folder, messages.PauseRequest())
    assert answer is not None
    assert answer.state == "paused"
    rig.controls.close()
    assert ask(rig.folder, messages.StatusRequest()) is None


def test_nobody_there(tmp_path: Path, rig: Rig) -> None:
    assert ask(tmp_path / "nowhere", messages.StatusRequest()) is None
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "other"))
        (tmp_path / "dead").mkdir()
        (tmp_path / "other").rename(tmp_path / "dead" / NAME)
    assert ask(tmp_path / "dead", messages.StatusRequest()) is None, "a killed worker's socket"
    ControlSocket(tmp_path / "dead").close()


def test_a_folder_with_a_long_name(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 150)
    folder.mkdir()
    made = ControlSocket(folder)
    server = threading.Thread(target=made.serve, args=(30.0, lambda _: messages.Answer(state="working")))
    server.start()
    answer = ask(folder, messages.StatusRequest())
    server.join()
    made.close()
    assert answer is not None
    assert answer.state == "working"


def test_an_answer_that_is_nonsense(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.controls.control_socket.encode_line", lambda _: b'{"state":7}\n')
    with pytest.raises(RemoteProtocolError):
        rig.ask(messages.StatusRequest())


def test_a_pause_on_disk_is_read_by_later_and_earlier_releases(rig: Rig) -> None:
    """Keys are added and never required, and one that says nothing new is not written: what reads no more than `until`
    and `keeps_relaying` reads a pause without end."""
    rig.ask(messages.PauseRequest())
    path = rig.folder / "pause.json"
    document = json.loads(path.read_bytes())
    assert document == {"until": None, "keeps_relaying": False}
    path.write_text(json.dumps({**document, "reason": "of a later release"}))
    kept = load_pause(rig.folder)
    assert kept is not None
    assert kept.until is None
    path.write_text(json.dumps({"until": rig.time + 60, "keeps_relaying": True}))
    os.utime(path, (rig.time, rig.time))
    assert load_pause(rig.folder) == Pause(rig.time + 60, keeps_relaying=True, length_s=60.0)
    for junk in ("", "[]", "{}", '{"until": "soon", "keeps_relaying": false}'):
        path.write_text(junk)
        assert load_pause(rig.folder) is None


def test_a_pause_of_a_wrong_clock_lasts_as_long_as_it_was_to(rig: Rig) -> None:
    rig.time += 30 * 86_400
    rig.ask(messages.PauseRequest(for_s=3_600.0))
    rig.time -= 30 * 86_400
    rig.start()
    rig.controls.tick()
    kept = load_pause(rig.folder)
    assert kept is not None
    assert kept.until == rig.time + 3_600
    rig.time += 1_800
    rig.start()  # a second start does not begin it again
    assert rig.ask(messages.StatusRequest()).until == rig.time + 1_800


@pytest.mark.parametrize(
    ("written_ahead_s", "for_s", "lasts_s"),
    [
        (0.0, 7_200.0, 5_400.0),
        (-86_400.0, 90_000.0, 1_800.0),
        (30 * 86_400.0, 7_200.0, 7_200.0),
        (30 * 86_400.0, 1e9, 366 * 86_400.0),
    ],
)
def test_a_pause_that_an_earlier_release_wrote_lasts_as_long_as_it_was_to(
    rig: Rig, written_ahead_s: float, for_s: float, lasts_s: float
) -> None:
    """It kept the end alone, which a clock a month ahead put a month away: 721 hours for a pause of one."""
    written = rig.time + written_ahead_s
    path = rig.folder / "pause.json"
    path.write_text(json.dumps({"until": written + for_s, "keeps_relaying": False}))
    os.utime(path, (written, written))
    if written_ahead_s <= 0.0:
        rig.time += 1_800
    rig.start()
    assert rig.ask(messages.StatusRequest()).until == rig.time + lasts_s
    rig.controls.tick()
    rig.time += 600
    rig.start()  # a second start does not begin it again
    assert rig.ask(messages.StatusRequest()).until == rig.time + lasts_s - 600
