"""A role's handle on its network process: leaving the network, joining it again, and figures that outlive a process."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.errors import TransportError
from p2prl.net.process import control
from p2prl.net.process.handle import NetworkHandle
from p2prl.net.process.network_config import NEW_RELAYS_STATUS, NetworkConfig
from p2prl.protocol.digests import Digest
from p2prl.protocol.kinds import Role
from p2prl.swarm import signals
from p2prl.swarm.node_config import NodeConfig


class Process:
    """A network process that a test speaks for: its end of the socket, and what the role has sent."""

    pid, returncode = 1, 0

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.fromfd(descriptor, socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(30)
        self._stream = self.socket.makefile("rb")
        self.status = 0
        """Its exit status."""

    def hear(self) -> control.ToNetwork:
        """The role's next message."""
        size = control.LENGTH.unpack(self._stream.read(control.LENGTH.size))[0]
        return control.parse_to_network(self._stream.read(size))

    def say(self, *messages: signals.Signal) -> None:
        for message in messages:
            self.socket.sendall(control.pack(message))

    def end(self) -> None:
        self._stream.close()
        self.socket.close()

    def wait(self, timeout_s: float | None = None) -> int:
        self.end()
        return self.status

    def kill(self) -> None:
        pass

    def lower_priority(self, pid: int) -> None:
        pass

    def remember_family(self) -> None:
        pass

    def end_family(self) -> None:
        pass


class Rig:
    def __init__(self, folder: Path) -> None:
        self.processes: list[Process] = []
        config = NetworkConfig(
            key_file=folder / "key",
            run=Digest(bytes(32)),
            node=NodeConfig(role=Role.VOLUNTEER),
            blob_dir=folder / "blobs",
            listen=("/ip4/127.0.0.1/tcp/0",),
        )
        self.handle = NetworkHandle(config, launch=self._launch)

    def _launch(self, descriptor: int) -> Process:
        self.processes.append(Process(descriptor))
        return self.processes[-1]

    @property
    def process(self) -> Process:
        return self.processes[-1]

    def poll(self, count: int) -> list[control.FromNetwork]:
        """The next messages, as many as that."""
        messages: list[control.FromNetwork] = []
        while len(messages) < count:
            messages += self.handle.poll(30.0)
        return messages


def status(*, sent: int) -> control.Status:
    return control.Status(
        (("learner", 1),), 10, 20, sent, 0, (-1, 0, 0), 40_000, 2_000, patch_bytes=5, received_over_circuits=3
    )


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    assert isinstance(made.process.hear(), control.Start)
    yield made
    made.handle.close()


def test_a_network_that_was_left_has_no_peers_and_no_memory(rig: Rig) -> None:
    rig.process.say(status(sent=7))
    assert rig.poll(1) == [status(sent=7)]
    rig.handle.suspend()
    rig.handle.suspend()
    (left,) = rig.poll(1)
    assert isinstance(left, control.Status)
    assert (left.peers, left.resident_bytes, left.daemon_bytes, left.sent) == ((), 0, 0, 7)
    assert rig.handle.status == left
    rig.handle.send(signals.SetLedgerHeight(3))
    assert rig.handle.poll(0.0) == []
    assert len(rig.processes) == 1, "its end restarts nothing"


def test_joining_again_starts_a_process_with_the_newest_settings(rig: Rig) -> None:
    rig.process.say(control.NetworkUp(("/ip4/127.0.0.1/tcp/4001/p2p/x",)), control.RunKnown(b"manifest"))
    rig.poll(2)
    rig.handle.send(control.SetUploadCaps(1_000.0, 5_000))
    rig.handle.suspend()
    rig.handle.send(control.SetUploadCaps(2_000.0, 6_000))
    rig.handle.resume()
    rig.handle.resume()
    assert len(rig.processes) == 2
    start = rig.process.hear()
    assert isinstance(start, control.Start)
    assert start.config.listen == ("/ip4/127.0.0.1/tcp/4001",), "where other peers expect it"
    assert start.config.manifest == b"manifest"
    assert (start.config.node.relay.upload_bytes_s, start.config.monthly_bytes) == (2_000.0, 6_000)


@pytest.mark.parametrize("is_read", [True, False])
def test_figures_outlive_a_process(rig: Rig, is_read: bool) -> None:
    rig.process.say(status(sent=7))
    rig.poll(1)
    rig.process.say(status(sent=9), signals.VersionAnnounced(1, 2))
    if is_read:
        rig.poll(2)
    rig.handle.suspend()
    left = rig.poll(1 if is_read else 2)
    assert left[:-1] == ([] if is_read else [signals.VersionAnnounced(1, 2)]), "what was not read yet still comes"
    rig.handle.resume()
    rig.process.hear()
    rig.process.say(status(sent=1))
    (now,) = rig.poll(1)
    assert isinstance(now, control.Status)
    assert (now.sent, now.received_from_source, now.received_from_peers, now.patch_bytes) == (10, 20, 40, 10)
    assert now.received_over_circuits == 6
    assert (now.resident_bytes, now.peers) == (40_000, (("learner", 1),))
    rig.process.end()  # it dies: another is started, and counts on
    while len(rig.processes) < 3:
        rig.handle.poll(1.0)
    rig.process.hear()
    rig.process.say(status(sent=5))
    (last,) = rig.poll(1)
    assert isinstance(last, control.Status)
    assert (last.sent, last.received_from_source) == (15, 30)


def test_a_process_that_ends_once_a_day_is_started_again_for_good(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    day, steady = 0, time.monotonic
    monkeypatch.setattr("p2prl.net.process.handle.time.monotonic", lambda: steady() + day * 86_400.0)
    for day in range(1, 20):
        rig.process.status = 1
        rig.process.end()
        while len(rig.processes) == day:
            rig.handle.poll(1.0)
        rig.process.hear()


@pytest.mark.parametrize(("status_code", "is_counted"), [(NEW_RELAYS_STATUS, False), (0, True), (1, True)])
def test_a_process_may_ask_for_another_as_often_as_it_likes(rig: Rig, status_code: int, is_counted: bool) -> None:
    def end_often() -> None:
        for count in range(2, 9):
            rig.process.status = status_code
            rig.process.end()
            while len(rig.processes) < count:
                rig.handle.poll(1.0)
            rig.process.hear()

    if is_counted:
        with pytest.raises(TransportError, match="6 times"):
            end_often()
    else:
        end_often()


def test_a_line_of_its_log_is_printed_and_is_no_message(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    """The role prints it: a line of another process would move a live panel on the same terminal."""
    rig.process.say(control.Logged("p2prl.net: no space"), status(sent=7))
    assert rig.poll(1) == [status(sent=7)]
    assert capsys.readouterr().err == "p2prl.net: no space\n"
