"""Send the owner's requests to running workers, and keep limits for those to come. Never imports torch."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

from p2prl.cli.views.console import emit, say
from p2prl.cli.views.controls_view import answer_line, limit_lines
from p2prl.config.owner_limits import config_file, config_text, load_limits, remember_limits
from p2prl.config.worker_folder import default_home
from p2prl.controls.control_socket import NAME, ask
from p2prl.controls.messages import Answer, LimitsRequest, PauseRequest, Request, StatusRequest
from p2prl.controls.quantities import read_duration_s
from p2prl.disk_full import write_error
from p2prl.errors import ConfigError, MachineError, P2PRLError, RemoteProtocolError


def tell_workers(request: Request, *, seat: str, home: Path | None, as_json: bool) -> None:
    """Send a request to each running worker, and print what it does now. `MachineError` when none runs."""
    _print(_told(request, seat=seat, home=home or default_home()), as_json=as_json)


def pause_workers(duration: str, *, keep_relaying: bool | None, seat: str, home: Path | None, as_json: bool) -> None:
    """Pause for a while, or until `p2prl resume`."""
    try:
        seconds = read_duration_s(duration) if duration else None
    except ValueError as error:
        raise ConfigError(
            f"--for {duration[:40]} is not understood: it takes {error}", remedy="Try --for 2h."
        ) from None
    request = PauseRequest(for_s=seconds or None, keep_relaying=keep_relaying)
    tell_workers(request, seat=seat, home=home, as_json=as_json)


def limits_command(changes: list[str], *, seat: str, home: Path | None, as_json: bool) -> None:
    """Show the limits of the running workers, else those of the next start; or set some for both."""
    base = home or default_home()
    wanted = _parsed(changes[1:] if changes[:1] == ["set"] else changes)
    if wanted:
        if not seat:
            remember_limits(base, wanted)
        answers = _answers(LimitsRequest(changes=wanted), seat=seat, home=base)
    else:
        answers = _answers(StatusRequest(), seat=seat, home=base)
    following = load_limits(base).document()
    if as_json:
        emit({"limits": following, "workers": _documents(answers), "time": time.time()})
        return
    for line in limit_lines(next(iter(answers.values())).limits if answers else following):
        say(line, unwrapped=True)
    if wanted:
        say("Kept for later starts." if not answers else "Kept, and followed by the running worker.")
    elif not answers:
        say("No worker runs; the next one keeps to these.")
    for name, answer in answers.items():
        for line in (answer.error, *answer.unread):
            if line:
                say(f"{name}: {line}")


def show_config(*, origin: bool, home: Path | None, as_json: bool) -> None:
    """Print the limits of the next start and their origins."""
    base = home or default_home()
    limits = load_limits(base).document()
    if as_json:
        emit({"file": str(config_file(base)), "limits": limits})
        return
    exists = config_file(base).exists()
    say(f"{config_file(base)}{'' if exists else ' (not there; p2prl config init writes one)'}", unwrapped=True)
    for line in limit_lines(limits, origin=origin):
        say(line, unwrapped=True)


def write_config(*, home: Path | None, as_json: bool) -> None:
    """Write the commented file. `ConfigError` when there is one."""
    path = config_file(home or default_home())
    if path.exists():
        raise ConfigError(f"{path} is there already", remedy="Edit it, or delete it first.")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(config_text())
    except OSError as error:
        raise write_error(error, path) from error
    if as_json:
        emit({"file": str(path)})
    else:
        say(f"Wrote {path}. Edit it; workers read it when they start.", unwrapped=True)


def live_answer(folder: Path) -> dict[str, Any] | None:
    """What the worker that runs in a folder does now, as a document; None when it does not say."""
    try:
        answer = ask(folder, StatusRequest())
    except P2PRLError:
        return None
    return None if answer is None else msgspec.to_builtins(answer)


def _told(request: Request, *, seat: str, home: Path) -> dict[str, Answer]:
    answers = _answers(request, seat=seat, home=home)
    if not answers:
        which = f"in {home / seat}" if seat else f"under {home}"
        raise MachineError(f"no worker runs {which}", remedy="Start one with p2prl join LINK, or give its --home.")
    return answers


def _answers(request: Request, *, seat: str, home: Path) -> dict[str, Answer]:
    """Answers of running workers by the names of their folders."""
    answers = {}
    for path in sorted(home.glob(f"{seat or '*'}/{NAME}")):
        try:
            answer = ask(path.parent, request)
        except RemoteProtocolError as error:
            raise MachineError(
                f"the worker of {path.parent} answers nonsense: {error}",
                remedy="Stop it with Ctrl-C; update p2prl if it is another version.",
            ) from error
        if answer is not None:
            answers[path.parent.name] = answer
    return answers


def _parsed(changes: list[str]) -> dict[str, str]:
    wanted = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not text:
            raise ConfigError(f"{change[:60]!r} is not NAME=VALUE", remedy="For example p2prl limits gpu.temp=75C.")
        wanted[name.strip()] = text.strip()
    return wanted


def _documents(answers: dict[str, Answer]) -> dict[str, Any]:
    return {name: msgspec.to_builtins(answer) for name, answer in answers.items()}


def _print(answers: dict[str, Answer], *, as_json: bool) -> None:
    refused = next((answer for answer in answers.values() if answer.error), None)
    if refused is not None:
        raise ConfigError(refused.error, remedy=refused.remedy)
    if as_json:
        emit({"workers": _documents(answers), "time": time.time()})
        return
    for name, answer in answers.items():
        say(f"{name}  {answer_line(msgspec.to_builtins(answer), now=time.time())}")
