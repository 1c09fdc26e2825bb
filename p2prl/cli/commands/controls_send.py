"""Send the owner's requests to running workers, and keep limits for those to come. Never imports torch."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from p2prl.cli.views.console import emit, say, show
from p2prl.cli.views.controls_view import answer_line, limit_lines
from p2prl.config.owner_limits import config_file, config_text, load_limits, remember_limits
from p2prl.config.worker_folder import default_home
from p2prl.controls.control_socket import NAME, ask
from p2prl.controls.messages import Answer, LimitShown, LimitsRequest, PauseRequest, Request, StatusRequest
from p2prl.controls.quantities import read_duration_s
from p2prl.disk_full import write_error
from p2prl.errors import ConfigError, MachineError, P2PRLError, RemoteProtocolError

_SEAT = re.compile(r"[a-z]+-[0-9]+")


def tell_workers(request: Request, *, seat: str, home: Path | None, as_json: bool) -> None:
    """Send a request to each running worker, and print what it does now. `MachineError` when none runs."""
    _print(_told(request, seat=seat, home=home or default_home()), as_json=as_json)


def pause_workers(duration: str, *, keep_relaying: bool | None, seat: str, home: Path | None, as_json: bool) -> None:
    """Pause for a while, or until `p2prl resume`."""
    try:
        seconds = read_duration_s(duration) if duration else None
        if seconds == 0.0:
            raise ValueError("a duration, as 10m, 2h or 1h30m")  # noqa: TRY301 - one error for all texts
    except ValueError as error:
        raise ConfigError(
            f"--for {duration[:40]} is not understood: it takes {error}",
            remedy="Try --for 2h, or leave it out to pause until p2prl resume.",
        ) from None
    request = PauseRequest(for_s=seconds, keep_relaying=keep_relaying)
    tell_workers(request, seat=seat, home=home, as_json=as_json)


def limits_command(changes: list[str], *, seat: str, home: Path | None, as_json: bool) -> None:
    """Show the limits of the running workers, else those of the next start; or set some for both."""
    base = home or default_home()
    wanted = _parsed(changes[1:] if changes[:1] == ["set"] else changes)
    if wanted and not seat:
        remember_limits(base, wanted)
    request = LimitsRequest(changes=wanted) if wanted else StatusRequest()
    told = _told(request, seat=seat, home=base) if seat else _answers(request, seat=seat, home=base)
    following = load_limits(base).document()
    if as_json:
        emit({"limits": following, "workers": _documents(told.answers), "time": time.time()})
        told.raise_first()
        return
    if told.answers:
        for workers, limits in _alike(told.answers):
            if len(told.answers) > 1:
                show(f"{', '.join(workers)}:")
            for line in limit_lines(limits):
                show(line, unwrapped=True)
    else:
        for line in limit_lines(following):
            show(line, unwrapped=True)
    if wanted and seat:
        say("Followed by this worker until it ends.")
    elif wanted:
        say("Kept, and followed by what runs now." if told.answers else "Kept for the next start: no worker runs.")
    elif not told.answers:
        say("No worker runs; the next one keeps to these.")
    for line in dict.fromkeys(line for answer in told.answers.values() for line in answer.unread):
        names = ", ".join(name for name, answer in told.answers.items() if line in answer.unread)
        say(f"{names}: {line}", unwrapped=True)
    told.raise_first()


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
        show(line, unwrapped=True)


def write_config(*, home: Path | None, as_json: bool) -> None:
    """Write the commented file. `ConfigError` when there is one."""
    path = config_file(home or default_home())
    if path.exists():
        raise ConfigError(f"{path} is there already", remedy="Edit it, or delete it first.")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(config_text(), encoding="utf-8")
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


@dataclass(slots=True)
class _Told:
    """What the workers of a home have answered. One that fails keeps no other from hearing its owner."""

    answers: dict[str, Answer] = field(default_factory=dict)
    """By the names of their folders."""
    errors: list[P2PRLError] = field(default_factory=list)
    """Of workers that do not answer or refuse."""

    def raise_first(self) -> None:
        """End with the first error, if any, once the others' answers are printed."""
        if self.errors:
            raise self.errors[0]


def _told(request: Request, *, seat: str, home: Path) -> _Told:
    told = _answers(request, seat=seat, home=home)
    if not told.answers and not told.errors:
        which = f"in {home / seat}" if seat else f"under {home}"
        raise MachineError(
            f"no worker runs {which}", remedy="p2prl status lists those of this machine; give another folder by --home."
        )
    return told


def _answers(request: Request, *, seat: str, home: Path) -> _Told:
    told = _Told()
    if seat and not _SEAT.fullmatch(seat):
        raise ConfigError(f"{seat[:40]!r} is not a worker's folder", remedy="p2prl status names them, as seat-1.")
    names = [seat] if seat else sorted(path.parent.name for path in home.glob(f"*/{NAME}"))
    for name in names:
        try:
            answer = ask(home / name, request)
        except RemoteProtocolError as error:
            told.errors.append(
                MachineError(
                    f"the worker of {home / name} answers nonsense: {error}",
                    remedy="Stop it with Ctrl-C; update p2prl if it is another version.",
                )
            )
        except MachineError as error:
            told.errors.append(error)
        else:
            if answer is not None and answer.error:
                told.errors.append(ConfigError(f"{name}: {answer.error}", remedy=answer.remedy))
            elif answer is not None:
                told.answers[name] = answer
    return told


def _alike(answers: dict[str, Answer]) -> list[tuple[list[str], Mapping[str, LimitShown]]]:
    """Limits with the names of the workers that have them."""
    groups: list[tuple[list[str], Mapping[str, LimitShown]]] = []
    for name, answer in answers.items():
        same = next((names for names, limits in groups if limits == answer.limits), None)
        if same is None:
            groups.append(([name], answer.limits))
        else:
            same.append(name)
    return groups


def _parsed(changes: list[str]) -> dict[str, str]:
    wanted = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals or not text:
            raise ConfigError(f"{change[:60]!r} is not NAME=VALUE", remedy="For example p2prl limits gpu.temp=75C.")
        if name.strip() in wanted:
            raise ConfigError(f"{name.strip()[:60]} is given twice", remedy="Keep the one that you mean.")
        wanted[name.strip()] = text.strip()
    return wanted


def _documents(answers: dict[str, Answer]) -> dict[str, Any]:
    return {name: msgspec.to_builtins(answer) for name, answer in answers.items()}


def _print(told: _Told, *, as_json: bool) -> None:
    if as_json:
        emit({"workers": _documents(told.answers), "time": time.time()})
    else:
        for name, answer in told.answers.items():
            say(f"{name}  {answer_line(msgspec.to_builtins(answer), now=time.time())}", unwrapped=True)
    told.raise_first()
