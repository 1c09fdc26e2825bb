"""The owner's pause on disk, so that a restart keeps it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import msgspec

from p2prl.controls.quantities import MOST_DURATION_S
from p2prl.controls.rules import Pause

_MOST_BYTES = 4_096


class _Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """Keys of later releases are passed over, and a default is not written: then an earlier release reads the rest."""

    until: float | None
    keeps_relaying: bool
    length_s: float | None = None


def load_pause(folder: Path) -> Pause | None:
    """The pause of a worker folder; None when there is none, or the file is damaged."""
    try:
        with (folder / "pause.json").open("rb") as file:
            found = msgspec.json.decode(file.read(_MOST_BYTES), type=_Document)
            written = os.fstat(file.fileno()).st_mtime
    except (OSError, msgspec.DecodeError):
        return None
    length_s = found.length_s
    if length_s is None:  # of an earlier release: the clock that gave the end also dated the file
        length_s = MOST_DURATION_S if found.until is None else max(0.0, found.until - written)
    return Pause(found.until, found.keeps_relaying, min(MOST_DURATION_S, length_s))


def save_pause(folder: Path, pause: Pause | None) -> None:
    """Keep a pause, or forget it. With a full disk, a restart forgets it too."""
    path = folder / "pause.json"
    with suppress(OSError):
        if pause is None:
            path.unlink(missing_ok=True)
            return
        new = folder / ".pause.new"
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            length_s = None if pause.until is None else pause.length_s
            file.write(msgspec.json.encode(_Document(pause.until, pause.keeps_relaying, length_s)))
        new.replace(path)
