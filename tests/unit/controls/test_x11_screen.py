"""The X11 desktop of a server without a screen: idle time, a full-screen window, and windows that vanish."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from p2prl.controls.desktop_sensor import X11Screen

pytestmark = pytest.mark.skipif(shutil.which("Xvfb") is None, reason="needs Xvfb")

_ATOM, _WINDOW = 4, 33
"""Types of properties, as X11 numbers them."""


class ClassHint(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("group", ctypes.c_char_p))


class Windows:
    """Acts as a window manager and as programs with windows."""

    def __init__(self, screen: X11Screen) -> None:
        self._screen, self._x, self._display = screen, screen._x, screen._display
        self._x.XCreateSimpleWindow.restype = ctypes.c_ulong

    def make(self, program: bytes) -> int:
        window = int(
            self._x.XCreateSimpleWindow(self._display, ctypes.c_ulong(self._screen._root), 0, 0, 640, 480, 0, 0, 0)
        )
        hint = ClassHint(program, program)
        self._x.XSetClassHint(self._display, ctypes.c_ulong(window), ctypes.byref(hint))
        return window

    def destroy(self, window: int) -> None:
        self._x.XDestroyWindow(self._display, ctypes.c_ulong(window))
        self._x.XSync(self._display, 0)

    def bring_to_front(self, window: int) -> None:
        self._change(self._screen._root, "_NET_ACTIVE_WINDOW", _WINDOW, [window])

    def set_states(self, window: int, *names: str) -> None:
        self._change(window, "_NET_WM_STATE", _ATOM, [self._screen._atom(name) for name in names])

    def _change(self, window: int, name: str, kind: int, values: list[int]) -> None:
        data = (ctypes.c_ulong * len(values))(*values)
        atom = ctypes.c_ulong(self._screen._atom(name))
        self._x.XChangeProperty(
            self._display, ctypes.c_ulong(window), atom, ctypes.c_ulong(kind), 32, 0, data, len(values)
        )
        self._x.XSync(self._display, 0)


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[X11Screen]:
    reading, writing = os.pipe()
    server = subprocess.Popen(
        ["Xvfb", "-displayfd", str(writing), "-screen", "0", "640x480x8", "-nolisten", "tcp"],
        pass_fds=[writing],
        stderr=subprocess.DEVNULL,
    )
    os.close(writing)
    with os.fdopen(reading) as told:
        number = told.readline().strip()
    monkeypatch.setenv("DISPLAY", f":{number}")
    try:
        yield X11Screen()
    finally:
        server.terminate()
        server.wait(30)


def test_a_full_screen_window_in_front_is_named(screen: X11Screen) -> None:
    windows = Windows(screen)
    assert screen.full_screen() is None, "no window manager tells"
    chess, editor = windows.make(b"Chess"), windows.make(b"Editor")
    windows.bring_to_front(editor)
    windows.set_states(chess, "_NET_WM_STATE_FULLSCREEN")
    assert screen.full_screen() == "", "the game is behind"
    windows.bring_to_front(chess)
    assert screen.full_screen() == "Chess"
    windows.set_states(chess, "_NET_WM_STATE_ABOVE", "_NET_WM_STATE_FULLSCREEN")
    assert screen.full_screen() == "Chess"
    windows.set_states(chess, "_NET_WM_STATE_ABOVE")
    assert screen.full_screen() == ""
    windows.destroy(chess)
    assert screen.full_screen() == "", "a window that has vanished ends no program"
    windows.bring_to_front(0)
    assert screen.full_screen() == ""


def test_idle_time_grows(screen: X11Screen) -> None:
    first, last = screen.idle_s(), None
    assert first is not None
    while last is None or last <= first:
        last = screen.idle_s()
    assert last < 600.0


def test_no_desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":no-such-desktop")
    with pytest.raises(OSError, match="no X11 desktop answers"):
        X11Screen()
