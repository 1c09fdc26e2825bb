"""Keep the machine awake: a process of the system's own tool, which holds the machine's sleep off while it runs.

Linux has `systemd-inhibit`, macOS `caffeinate`. Both run a command and hold on until it ends. The command is `cat`,
which reads from the worker's end of a socket pair: it ends when the worker lets go, ends, or is killed.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from p2prl.confinement.children import Launch, Program
from p2prl.controls.watcher import Watcher

_HELD = b"held"

_HOLD = ("sh", "-c", f"echo {_HELD.decode()}; exec cat")

_TOOLS = {
    "linux": ("systemd-inhibit", "--what=sleep:idle", "--mode=block", "--who=p2prl", "--why=sampling for a run"),
    "darwin": ("caffeinate", "-i"),
}
"""By platform. Closing a laptop's lid still sends it to sleep: neither holds that off."""

_MOST_CAUSE_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class _Seen:
    held: bool = False
    why: str = ""
    """What the tool says, where it does not hold."""


def awake_program() -> Program:
    """The tool, for `awake_missing` empty."""
    return Program(
        command=(sys.executable, "-m", "p2prl.controls.awake_process", *_TOOLS.get(sys.platform, ()), *_HOLD)
    )


def awake_missing(platform: str, release: str, find: Callable[[str], str | None] = shutil.which) -> str:
    """A sentence why this system cannot be kept awake; empty where it is tried. `release` is the kernel's."""
    if "microsoft" in release.casefold():
        return "Windows decides when this machine sleeps (Settings, System, Power), and WSL2 cannot hold that off"
    tool = _TOOLS.get(platform)
    if tool is None:
        return "there is no way known to this program on this system"
    return "" if find(tool[0]) else f"{tool[0]} is not installed"


class KeptAwake:
    """Holds the machine's sleep off while it is wanted. For one thread."""

    def __init__(
        self,
        launch: Launch | None = None,
        *,
        missing: str | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`launch` starts the process where this one may start none; `missing` as of `awake_missing`."""
        self._missing = awake_missing(sys.platform, os.uname().release) if missing is None else missing
        self._watcher = Watcher(
            launch or awake_program().start,
            _reading,
            pending=_Seen(),
            gone=lambda seen: replace(seen, held=False, why=seen.why or "its tool has ended"),
            now=now,
        )
        self.missing = self._missing
        """A sentence why the machine is not kept awake though it should be; empty otherwise."""
        self.is_held = False
        """Whether the system holds its sleep off for this worker now."""

    def follow(self, *, wanted: bool) -> None:
        """Hold on or let go."""
        if self._missing:
            return
        if not wanted:
            if self.is_held or self._watcher.newest != _Seen():
                self._watcher.close()
            self.is_held, self.missing = False, ""
            return
        seen = self._watcher.read()
        self.is_held, self.missing = seen.held, seen.why

    def close(self) -> None:
        """Let go."""
        self._watcher.close()
        self.is_held = False


def _reading(line: bytes) -> _Seen:
    if line == _HELD:
        return _Seen(held=True)
    text = "".join(letter for letter in line.decode(errors="replace") if letter.isprintable())
    return _Seen(why=text[:_MOST_CAUSE_CHARACTERS].rstrip(". "))


def _become(command: list[str], descriptor: int) -> None:
    """Become the tool, with the descriptor as its input and output."""
    for number in (0, 1, 2):
        os.dup2(descriptor, number)
    os.closerange(3, max(4, descriptor + 1))
    os.execvp(command[0], command)  # noqa: S606 - the table's tool, found on the path as a shell would


if __name__ == "__main__":
    _become(sys.argv[1:-1], int(sys.argv[-1]))
