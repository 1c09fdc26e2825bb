"""The desktop's watcher: started at need, its newest line counts, and one that dies is told and started again."""

from __future__ import annotations

import os
import socket

import pytest

from p2prl.confinement.children import Child
from p2prl.controls.desktop_process import STALE_S, Desktop, DesktopWatch
from p2prl.controls.desktop_sensor import desktop_missing, watch
from p2prl.controls.watcher import RESTART_S


class Watchers:
    """Starts watchers that a test speaks for."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self.fails = False

    def __call__(self, descriptor: int) -> Child:
        if self.fails:
            raise OSError("no process left")
        self.ends.append(socket.socket(fileno=os.dup(descriptor)))
        return ENDED


class _Ended:
    pid, returncode = 1, 0

    def wait(self, timeout_s: float | None = None) -> int:
        return 0

    def kill(self) -> None:
        pass

    def lower_priority(self, pid: int) -> None:
        pass

    def remember_family(self) -> None:
        pass

    def end_family(self) -> None:
        pass


ENDED: Child = _Ended()


class Rig:
    def __init__(self) -> None:
        self.time, self.watchers = 100.0, Watchers()
        self.watch = DesktopWatch(self.watchers, now=lambda: self.time)

    def say(self, line: bytes) -> Desktop:
        """The watcher writes; what the worker reads then."""
        self.watchers.ends[-1].sendall(line)
        return self.watch.read()


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    for name in ("WAYLAND_DISPLAY", "XDG_SESSION_TYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("sys.platform", "linux")
    return Rig()


def close(rig: Rig) -> None:
    rig.watch.close()
    for end in rig.watchers.ends:
        end.close()


def test_the_newest_line_counts(rig: Rig) -> None:
    assert rig.watch.read() == Desktop(pending=True)
    assert rig.say(b'{"idle_s":3.5,"full_screen":""}\n') == Desktop(3.5, "")
    assert rig.say(b'{"idle_s":4}\n{"idle_s":5}\n{"idle') == Desktop(5.0)
    assert rig.say(b'_s":6}\n') == Desktop(6.0)
    assert len(rig.watchers.ends) == 1
    close(rig)


def test_a_reading_grows_old_but_a_reason_does_not(rig: Rig) -> None:
    rig.watch.read()
    rig.say(b'{"idle_s":900.0}\n')
    rig.time += STALE_S
    assert rig.watch.read().idle_s == 900.0
    rig.time += 0.1
    assert rig.watch.read() == Desktop(missing="the desktop's watcher does not answer")
    rig.say(b'{"missing":"no desktop"}\n')
    rig.time += 10 * STALE_S
    assert rig.watch.read().missing == "no desktop"
    close(rig)


def test_a_watcher_that_dies_is_started_again_later(rig: Rig) -> None:
    rig.watch.read()
    rig.watchers.ends[-1].close()
    assert "does not answer" in rig.watch.read().missing
    rig.time += RESTART_S - 1
    rig.watch.read()
    assert len(rig.watchers.ends) == 1
    rig.time += 1
    rig.watch.read()
    assert len(rig.watchers.ends) == 2
    assert rig.say(b'{"idle_s":1.0}\n').idle_s == 1.0
    close(rig)


def test_no_watcher_is_started_where_the_desktop_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    rig = Rig()
    assert "Wayland" in rig.watch.read().missing or "X11 only" in rig.watch.read().missing
    assert not rig.watchers.ends


def test_a_watcher_that_cannot_be_started(rig: Rig) -> None:
    rig.watchers.fails = True
    assert "does not answer" in rig.watch.read().missing
    rig.watch.close()


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"idle_s":"x"}\n', b"\xff\n", b"x" * 20_000 + b"\n"])
def test_nonsense_is_no_reading(rig: Rig, line: bytes) -> None:
    rig.watch.read()
    assert "does not answer" in rig.say(line).missing
    close(rig)


def test_names_of_programs_are_shown_plain_and_short(rig: Rig) -> None:
    rig.watch.read()
    assert rig.say(b'{"full_screen":"\\u001b[31mchess' + b"x" * 99 + b'"}\n').full_screen == "[31mchess" + "x" * 31
    assert rig.say(b'{"full_screen":"\\u0007"}\n').full_screen == "a full-screen program"
    close(rig)


@pytest.mark.parametrize(
    ("environment", "platform", "sentence"),
    [
        ({"DISPLAY": ":0"}, "darwin", "X11 only"),
        ({"DISPLAY": ":0", "WAYLAND_DISPLAY": "wayland-0"}, "linux", "Wayland"),
        ({"DISPLAY": ":0", "XDG_SESSION_TYPE": "wayland"}, "linux", "Wayland"),
        ({}, "linux", "no DISPLAY"),
        ({"DISPLAY": ":0", "XDG_SESSION_TYPE": "x11"}, "linux", ""),
    ],
)
def test_systems_that_hide_the_desktop(environment: dict[str, str], platform: str, sentence: str) -> None:
    found = desktop_missing(environment, platform)
    assert sentence in found
    assert bool(found) is bool(sentence)


def test_without_a_desktop_the_watcher_says_why_and_waits_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("XDG_SESSION_TYPE", raising=False)
    monkeypatch.setenv("DISPLAY", ":no such desktop")
    ours, theirs = socket.socketpair()
    ours.shutdown(socket.SHUT_WR)
    with ours, theirs:
        watch(theirs)
        assert b'"missing"' in ours.recv(4_096)
