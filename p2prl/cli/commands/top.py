"""`p2prl top`: this machine's workers on the whole terminal, redrawn each second, with keys to command them."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from p2prl.cli.commands.status import workers_of
from p2prl.cli.options import Home
from p2prl.cli.views.console import console
from p2prl.cli.views.status_view import answer_line, worker_lines
from p2prl.cli.views.worker_screen import WorkerScreen
from p2prl.config.worker_folder import default_home
from p2prl.controls.control_socket import ask
from p2prl.controls.messages import FinishRequest, PauseRequest, Request, ResumeRequest, StopRequest
from p2prl.errors import ConfigError, MachineError, P2PRLError
from p2prl.plain_text import cleaned


def top(home: Home = None) -> None:
    """Show the workers of this machine on the whole terminal, and pause, resume or finish them by a key."""
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


_PERIOD_S = 1.0

_REQUESTS: Mapping[str, Request] = {
    "pause": PauseRequest(),
    "resume": ResumeRequest(),
    "finish": FinishRequest(),
    "stop": StopRequest(),
}


def _obeyed(home: Path, worker: Mapping[str, object], name: str) -> str:
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


_COMMANDS = {"p": "pause", "r": "resume", "F": "finish", "S": "stop"}
"""Ending a worker takes Shift: a slip of the finger must not."""


def command_of(key: str) -> str:
    """The command of a key; empty for others."""
    return _COMMANDS.get(key, "")


class TopView:
    """All workers of a home; `place` is the one shown in full."""

    def __init__(self, workers: Sequence[Mapping[str, object]], place: int, *, now: float, message: str = "") -> None:
        """`workers` are documents of `p2prl status --json`, `now` Unix seconds, `message` the answer to a key."""
        self._workers = workers
        self._place = place
        self._now = now
        self._message = message

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        shown = self._workers[self._place]
        if shown.get("running") and shown.get("role") == "volunteer":
            yield WorkerScreen(shown, now=self._now, hints=False)
        else:
            for line in worker_lines(shown, now=self._now):
                yield Text(cleaned(line))
        rule = "-" if options.ascii_only else "─"
        if len(self._workers) > 1:
            yield Rule(style="dim", characters=rule)
            for number, worker in enumerate(self._workers):
                mark = ">" if number == self._place else " "
                heading = cleaned(worker_lines(worker, now=self._now)[0])
                yield Text(f"{mark} {heading}", no_wrap=True, overflow="ellipsis")
        yield Rule(style="dim", characters=rule)
        yield Text(self._keys(), style="bold")
        if self._message:
            yield Text(cleaned(self._message), style="cyan")

    def _keys(self) -> str:
        other = "  Tab next worker" if len(self._workers) > 1 else ""
        return f"p pause  r resume  F finish and end  S stop now{other}  q leave (the worker goes on)"
