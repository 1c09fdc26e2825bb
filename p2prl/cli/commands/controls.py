"""`p2prl pause`, `resume`, `finish` and `stop`: the owner's word to the running workers of this machine."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from p2prl.cli.options import AsJson, Home
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.status_view import answer_line
from p2prl.config.worker_folder import default_home, holder_of, read_status
from p2prl.controls.control_socket import NAME, ask
from p2prl.controls.messages import (
    Answer,
    FinishRequest,
    PauseRequest,
    Request,
    ResumeRequest,
    StatusRequest,
    StopRequest,
)
from p2prl.controls.owner_values import read_duration_s
from p2prl.errors import ConfigError, MachineError, P2PRLError, RemoteProtocolError
from p2prl.models.hardware.card_names import card_named
from p2prl.plain_text import cleaned

Seat = Annotated[str, typer.Option("--seat", help="One worker's folder, as seat-1. Default: all that run.")]
Card = Annotated[
    str,
    typer.Option("--device", help="The worker on the card of this name, or a part of it. Default: all that run."),
]


def pause(
    duration: Annotated[str, typer.Option("--for", help="How long, as 30m or 2h. Default: until p2prl resume.")] = "",
    keep_relaying: Annotated[
        bool, typer.Option("--keep-relaying", help="Go on uploading weights to others meanwhile.")
    ] = False,
    seat: Seat = "",
    device: Card = "",
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Pause the workers of this machine and free their memory, until the time is over or p2prl resume."""

    try:
        seconds = read_duration_s(duration) if duration else None
        if seconds == 0.0:
            raise ValueError("a duration, as 10m, 2h or 1h30m")  # noqa: TRY301 - one error for all texts
    except ValueError as error:
        raise ConfigError(
            f"--for {duration[:40]} is not understood: it takes {error}",
            remedy="Try --for 2h, or leave it out to pause until p2prl resume.",
        ) from None
    request = PauseRequest(for_s=seconds, keep_relaying=keep_relaying or None)
    tell_workers(request, seat=seat, device=device, home=home, as_json=as_json)


def resume(seat: Seat = "", device: Card = "", home: Home = None, as_json: AsJson = False) -> None:
    """End a pause."""
    tell_workers(ResumeRequest(), seat=seat, device=device, home=home, as_json=as_json)


def finish(seat: Seat = "", device: Card = "", home: Home = None, as_json: AsJson = False) -> None:
    """Have the workers complete the slots in flight and end, as one Ctrl-C does."""
    tell_workers(FinishRequest(), seat=seat, device=device, home=home, as_json=as_json)


def stop(seat: Seat = "", device: Card = "", home: Home = None, as_json: AsJson = False) -> None:
    """Have the workers end now. Finished groups stay on disk, and are delivered at the next start."""
    tell_workers(StopRequest(), seat=seat, device=device, home=home, as_json=as_json)


_SEAT = re.compile(r"[a-z]+-[0-9]+")


def tell_workers(request: Request, *, seat: str, device: str, home: Path | None, as_json: bool) -> None:
    """Send a request to each running worker, and print what it does now. `MachineError` when none runs."""
    base = home or default_home()
    _print(told(request, seat=chosen_seat(seat, device, base), home=base), as_json=as_json)


def chosen_seat(seat: str, device: str, home: Path) -> str:
    """The folder of the one worker that is meant; empty for all. `ConfigError` where a card's name means none."""
    if not device:
        return seat
    if seat:
        raise ConfigError("--seat and --device both name a worker", remedy="Give one of them.")
    cards = {}
    for path in home.glob("*/*/status.json"):
        status, folder = read_status(path), path.parent.parent
        engine = status.get("engine")
        if isinstance(engine, dict) and status.get("pid") == holder_of(folder):
            cards[folder.name] = cleaned(str(engine.get("device", "")))
    if not cards:
        raise MachineError(f"no worker under {home} has begun to compute", remedy="p2prl status lists those that run.")
    return card_named(device, dict(sorted(cards.items())))


def live_answer(folder: Path) -> dict[str, object] | None:
    """What the worker that runs in a folder does now, as a document; None when it does not say."""
    try:
        answer = ask(folder, StatusRequest())
    except P2PRLError:
        return None
    return None if answer is None else msgspec.to_builtins(answer)


@dataclass(slots=True)
class Told:
    """What the workers of a home have answered. One that fails keeps no other from hearing its owner."""

    answers: dict[str, Answer] = field(default_factory=dict)
    """By the names of their folders."""
    errors: list[P2PRLError] = field(default_factory=list)
    """Of workers that do not answer or refuse."""

    def raise_first(self) -> None:
        """End with the first error, if any, once the others' answers are printed."""
        if self.errors:
            raise self.errors[0]


def told(request: Request, *, seat: str, home: Path) -> Told:
    told = answers(request, seat=seat, home=home)
    if not told.answers and not told.errors:
        which = f"in {home / seat}" if seat else f"under {home}"
        raise MachineError(
            f"no worker runs {which}", remedy="p2prl status lists those of this machine; give another folder by --home."
        )
    return told


def answers(request: Request, *, seat: str, home: Path) -> Told:
    told = Told()
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


def documents(answers: dict[str, Answer]) -> dict[str, object]:
    return {name: msgspec.to_builtins(answer) for name, answer in answers.items()}


def _print(told: Told, *, as_json: bool) -> None:
    if as_json:
        emit({"workers": documents(told.answers), "time": time.time()})
    else:
        for name, answer in told.answers.items():
            say(f"{name}  {answer_line(msgspec.to_builtins(answer), now=time.time())}", unwrapped=True)
    told.raise_first()
