"""The desktop's watcher: a small process that tells a worker, once a second, how long nobody was there and what fills
the screen.

It is a process of its own because a confined worker opens no socket, and must hold no connection to the desktop. It
reads nothing of its worker and ends when the worker hangs up.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from collections.abc import Mapping

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
        from p2prl.controls.x11_screen import X11Screen

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
