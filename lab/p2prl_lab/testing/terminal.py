"""A person's terminal: a shell in tmux, typed into and read as a screen of text."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from p2prl.errors import MachineError
from p2prl_lab.testing.swarm_processes import wait_until

_PROMPT = "$ "

_START_S = 30.0
"""Longest wait for a shell on a busy machine."""


class Terminal:
    """One window of a tmux server of its own, which `close` ends with all that runs in it."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *, columns: int = 80, rows: int = 40) -> None:
        """Open it in `folder`. `MachineError` where tmux is not installed."""
        program = shutil.which("tmux")
        if program is None:
            raise MachineError("tmux is not installed", remedy="Install it with your system's packages.")
        self._program = program
        self._server = f"p2prl-{secrets.token_hex(6)}"
        self._environment = dict(environment) | {"PS1": _PROMPT, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
        size = ("-x", str(columns), "-y", str(rows))
        shell = ("bash", "--noprofile", "--norc", "-i")
        self._tmux("-f", "/dev/null", "new-session", "-d", *size, "-c", str(folder), *shell)
        self.wait(_PROMPT.strip(), _START_S)

    def type(self, line: str) -> None:
        """Type a line at the prompt, and Enter once the shell shows it: an earlier screen ends with a prompt too."""
        self._tmux("send-keys", "-l", line)
        typed = "".join((_PROMPT + line).split())  # a long one wraps
        self.wait(lambda screen: "".join(screen.split()).endswith(typed), _START_S)
        self._tmux("send-keys", "Enter")

    def press(self, key: str) -> None:
        """Press a key, as tmux names it: `C-c`, `q`."""
        self._tmux("send-keys", key)

    def clear(self) -> None:
        """Empty the screen."""
        self._tmux("send-keys", "C-l")

    def screen(self) -> str:
        """What the person sees, without blank ends of lines and blank lines at the end."""
        shown = self._tmux("capture-pane", "-p").rstrip()
        return "\n".join(line.rstrip() for line in shown.splitlines()) + "\n"

    def wait(self, text: str | Callable[[str], object], seconds: float) -> str:
        """The screen as soon as it shows a text, or fulfills a condition; `AssertionError` with the screen if never."""
        seen = ""

        def shown() -> bool:
            nonlocal seen
            seen = self.screen()
            return text in seen if isinstance(text, str) else bool(text(seen))

        try:
            wait_until(shown, seconds=seconds, what=repr(text))
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen was\n{seen}") from None
        return seen

    def close(self) -> None:
        """End the shell and what runs in it."""
        subprocess.run([self._program, "-L", self._server, "kill-server"], check=False, capture_output=True)

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(
            [self._program, "-L", self._server, *arguments],
            check=True,
            capture_output=True,
            text=True,
            env=self._environment,
        ).stdout
