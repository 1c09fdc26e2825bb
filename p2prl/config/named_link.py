"""The join link that a user names: the link itself, or a run folder on this machine that has one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from p2prl.errors import ConfigError
from p2prl.protocol.join_link import SCHEME, JoinLink, is_link, parse_link

_PATH = re.compile(r"[^@?:]*/[^@?:]*")
"""What names a folder, and has no part of a link."""

_MOST_BYTES = 64 * 1024
"""Of a file with a link: addresses are bounded."""


def named_link(text: str, *, needs_peer: bool = True) -> JoinLink:
    """The link in `text`, or that of the run folder it names. `ConfigError` says how to get one.

    `needs_peer` as in `parse_link`.
    """
    path = _existing(text.strip())
    if path is None and _PATH.fullmatch(text.strip()):
        raise ConfigError(
            f"there is no folder {text.strip()[:200]} here, and it is no join link",
            remedy=f"Go to the folder that it lies in, or copy the run's link, which starts with {SCHEME}.",
        )
    if path is None:
        return parse_link(text, needs_peer=needs_peer)
    if path.is_file():
        return parse_link(_read(path))
    if not (path / "run.manifest").is_file():
        raise ConfigError(
            f"{text} is a folder without a run, and a join link is wanted",
            remedy=f"The run's owner has its link, which starts with {SCHEME}: p2prl learn prints it.",
        )
    if not (path / "link").is_file():
        raise ConfigError(
            f"the run in {text} has no join link yet: its learner has not been up",
            remedy=f"Start it with p2prl learn {shlex.quote(text)}, which prints the link; then run this again.",
        )
    return parse_link(_read(path / "link"))


def _existing(text: str) -> Path | None:
    """The file or folder of this name; None where there is none, as for a link or a name that no file can have."""
    if not text or is_link(text):
        return None
    try:
        path = Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, RuntimeError, ValueError):  # too long a name, `~` of an unknown user, a null character
        return None


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", remedy="Give the join link itself.") from error
