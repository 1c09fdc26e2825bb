"""The full-screen view of this machine's workers, redrawn each second, with keys for the owner's commands."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.live import Live

from p2prl.cli.commands.status_read import workers_of
from p2prl.cli.views.console import console
from p2prl.cli.views.controls_view import answer_line
from p2prl.cli.views.top_view import TopView, command_of
from p2prl.config.worker_folder import default_home
from p2prl.controls.control_socket import ask
from p2prl.controls.messages import FinishRequest, PauseRequest, Request, ResumeRequest, StopRequest
from p2prl.errors import ConfigError, MachineError, P2PRLError

_PERIOD_S = 1.0

_REQUESTS: Mapping[str, Request] = {
    "pause": PauseRequest(),
    "resume": ResumeRequest(),
    "finish": FinishRequest(),
    "stop": StopRequest(),
}


def run_top(home: Path | None) -> None:
    """Show the workers until `q` or Ctrl-C. `MachineError` without a terminal."""
    if not (console.is_terminal and sys.stdin.isatty()):
        raise MachineError(
            "p2prl top needs a terminal", remedy="p2prl status prints the same once, as lines or --json."
        )
    base = home or default_home()
    workers = workers_of(base)
    if not workers:
        raise ConfigError(f"nothing has run under {base} yet", remedy="Start with p2prl join LINK.")
    place, message = 0, ""
    with _keys() as next_key, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            place = min(place, len(workers) - 1)
            live.update(TopView(workers, place, now=time.time(), message=message), refresh=True)
            key = next_key(_PERIOD_S)
            if key in ("q", "\x03"):
                return
            if key in ("\t", "n"):
                place, message = (place + 1) % len(workers), ""
            elif name := command_of(key):
                message = _obeyed(base, workers[place], name)
            workers = workers_of(base) or workers


def _obeyed(home: Path, worker: Mapping[str, Any], name: str) -> str:
    """Send a command to the worker on the screen; what it answered, in a sentence."""
    if not worker.get("running"):
        return "This worker does not run."
    try:
        answer = ask(home / str(worker["seat"]), _REQUESTS[name])
    except P2PRLError as error:
        return f"{error}. {error.remedy}"
    if answer is None:
        return "This worker does not listen to commands."
    document = {"state": answer.state, "reason": answer.reason, "until": answer.until, "relays": answer.relays}
    return answer.error or answer_line({**document, "followed": answer.followed}, now=time.time())


@contextmanager
def _keys() -> Iterator[Any]:
    """A function that waits for a key, for some seconds at most; an empty text when none came."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)

    def next_key(seconds: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        if not ready:
            return ""
        raw = os.read(descriptor, 1)
        return raw.decode("ascii", "replace") if raw else "q"  # the terminal was closed

    try:
        yield next_key
    except KeyboardInterrupt:
        return
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
