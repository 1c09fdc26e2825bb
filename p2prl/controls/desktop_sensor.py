"""The desktop's watcher: a process that tells, each second, how long nobody was there and what fills the screen.

It is a process of its own because a confined worker opens no socket, and must hold no connection to the desktop. It
reads nothing of its worker and ends when the worker hangs up.

An open X connection may read every key and type into every window, so only the desktop's watcher holds one: a process
that reads nothing of a stranger.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import select
import socket
import sys
from collections.abc import Mapping
from typing import Any

_ANY_TYPE = 0

_MOST_ITEMS = 64
"""States of a window that are read; there are about a dozen kinds."""

_ErrorHandler = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

_IGNORE_ERRORS = _ErrorHandler(lambda *_: 0)
"""A window may be gone between two requests; the library's own handler ends the program then."""


class _ScreenSaverInfo(ctypes.Structure):
    _fields_ = (
        ("window", ctypes.c_ulong),
        ("state", ctypes.c_int),
        ("kind", ctypes.c_int),
        ("since_ms", ctypes.c_ulong),
        ("idle_ms", ctypes.c_ulong),
        ("event_mask", ctypes.c_ulong),
    )


class _ClassHint(ctypes.Structure):
    _fields_ = (("name", ctypes.c_void_p), ("group", ctypes.c_void_p))


class X11Screen:
    """The desktop that `DISPLAY` names. `OSError` where a library or the desktop is missing."""

    def __init__(self) -> None:
        self._x = _library("X11")
        self._saver = _library("Xss")
        self._x.XSetErrorHandler(_IGNORE_ERRORS)
        address: int | None = self._x.XOpenDisplay(None)
        if address is None:
            raise OSError("no X11 desktop answers")
        self._display = ctypes.c_void_p(address)
        self._root = self._x.XDefaultRootWindow(self._display)
        self._info = _ScreenSaverInfo()

    def idle_s(self) -> float | None:
        """Seconds since somebody used keyboard or mouse; None where the desktop does not tell."""
        if not self._saver.XScreenSaverQueryInfo(self._display, self._root, ctypes.byref(self._info)):
            return None
        return int(self._info.idle_ms) / 1e3

    def full_screen(self) -> str | None:
        """Name of the program whose window is in front and fills the screen; empty for none."""
        front = self._property(self._root, "_NET_ACTIVE_WINDOW")
        if not front:
            return None  # no window manager tells
        if not front[0] or self._atom("_NET_WM_STATE_FULLSCREEN") not in self._property(front[0], "_NET_WM_STATE"):
            return ""
        return self._name(front[0])

    def _atom(self, name: str) -> int:
        return int(self._x.XInternAtom(self._display, name.encode(), 0))

    def _property(self, window: int, name: str) -> list[int]:
        """Numbers of a window's property."""
        kind, size, count, left = ctypes.c_ulong(), ctypes.c_int(), ctypes.c_ulong(), ctypes.c_ulong()
        data = ctypes.POINTER(ctypes.c_ulong)()  # 32-bit items come as the C library's long
        failed = self._x.XGetWindowProperty(
            *(self._display, ctypes.c_ulong(window), ctypes.c_ulong(self._atom(name))),
            *(ctypes.c_long(0), ctypes.c_long(_MOST_ITEMS), 0, ctypes.c_ulong(_ANY_TYPE)),
            *(ctypes.byref(item) for item in (kind, size, count, left, data)),
        )
        try:
            if failed:
                return []
            # Null, with a count of 0, where the window has no such property.
            return [data[place] for place in range(min(count.value, _MOST_ITEMS))] if size.value == 32 else []
        finally:
            self._x.XFree(data)

    def _name(self, window: int) -> str:
        hint = _ClassHint()
        if not self._x.XGetClassHint(self._display, ctypes.c_ulong(window), ctypes.byref(hint)):
            return "a full-screen program"
        group = ctypes.cast(hint.group, ctypes.c_char_p).value if hint.group else b""
        for pointer in (hint.name, hint.group):
            if pointer:
                self._x.XFree(ctypes.c_void_p(pointer))
        return (group or b"").decode(errors="replace") or "a full-screen program"


def _library(name: str) -> Any:
    path = ctypes.util.find_library(name)
    if path is None:
        raise OSError(f"the library lib{name} is missing")
    library = ctypes.CDLL(path)
    if name == "X11":
        library.XOpenDisplay.restype = ctypes.c_void_p
        library.XDefaultRootWindow.restype = ctypes.c_ulong
        library.XDefaultRootWindow.argtypes = (ctypes.c_void_p,)
        library.XInternAtom.restype = ctypes.c_ulong
        library.XInternAtom.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
    else:
        library.XScreenSaverQueryInfo.argtypes = (ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p)
    return library


PERIOD_S = 1.0
"""Between two readings."""


def desktop_missing(environment: Mapping[str, str], platform: str) -> str:
    """A sentence why this system's desktop cannot be read; empty where it is tried."""
    if platform != "linux":
        return "keyboard, mouse and full-screen windows can be seen on X11 only"
    if environment.get("WAYLAND_DISPLAY") or environment.get("XDG_SESSION_TYPE") == "wayland":
        return "a Wayland desktop hides keyboard, mouse and windows from other programs"
    if not environment.get("DISPLAY"):
        return "the worker was started outside a desktop session (no DISPLAY)"
    return ""


def watch(channel: socket.socket) -> None:
    """Write one line of JSON each second, until the other end closes."""
    missing, screen = desktop_missing(os.environ, sys.platform), None
    if not missing:
        try:
            screen = X11Screen()
        except OSError as error:
            missing = str(error)
    while True:
        seen = (
            {"missing": missing} if screen is None else {"idle_s": screen.idle_s(), "full_screen": screen.full_screen()}
        )
        try:
            channel.sendall(json.dumps(seen).encode() + b"\n")
        except OSError:
            return
        if select.select([channel], [], [], None if screen is None else PERIOD_S)[0]:
            return


if __name__ == "__main__":
    watch(socket.socket(fileno=int(sys.argv[1])))
