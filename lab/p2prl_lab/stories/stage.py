"""The stage of the stories: a learner and a volunteer in the background, and a person's terminals."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from p2prl.installation import this_installation
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, kill_tree, wait_until
from p2prl_lab.testing.terminal import Terminal

PLENTY = "100000"
"""Updates of a learner that does not end by itself."""


@dataclass(frozen=True, slots=True)
class Screen:
    """What a person saw, and when."""

    moment: str
    """A sentence without a full stop."""
    text: str


@dataclass
class Stage:
    """One run on loopback, for the stories in turn."""

    folder: Path
    swarm: SwarmProcesses
    learner: RoleProcess | None = None
    link: str = ""

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.folder / "runs" / "sums"

    def prepare(self) -> None:
        """Make the run, and start its learner and a volunteer that is not the person's."""
        made = command(
            "init", "sums", "--in", str(self.folder / "runs"), environment=self.swarm.environment(), timeout_s=300
        )
        if made.returncode:
            raise RuntimeError(made.stderr)
        self.start_learner()
        self.swarm.start("other", "join", self.link, "--threads", "1", *LISTEN, home=self.folder / "other")

    def start_learner(self, updates: str = PLENTY) -> None:
        """Start it, or start it again where it was: its port and its link stay."""
        number = sum(name.startswith("learner") for name in self.swarm.roles)
        self.learner = self.swarm.start(f"learner-{number}", "learn", str(self.run), "--updates", updates, *LISTEN)
        self.link = wait_until(self._written_link, seconds=120, what="a join link")

    def kill_learner(self) -> None:
        """As a power cut does."""
        assert self.learner is not None
        kill_tree(self.learner)

    @contextlib.contextmanager
    def terminal(
        self, home: str = "ada", *, columns: int = 80, rows: int = 40, display: str = ""
    ) -> Iterator[Terminal]:
        """A terminal of a person whose home folder has this name; `$LINK` is the run's link."""
        own = self.folder / home
        own.mkdir(exist_ok=True)
        environment = {
            **self.swarm.environment(own / "p2prl"),
            "HOME": str(own),
            "LINK": self.link,
            "DISPLAY": display,
            "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
            "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        }
        shown = Terminal(own, environment, columns=columns, rows=rows)
        try:
            yield shown
        finally:
            shown.close()

    def shown(self, moment: str, text: str) -> Screen:
        """A screen without this machine's own folders in it."""
        clone = this_installation().clone
        text = text if clone is None else text.replace(f"cd {clone} ", "cd ~/p2prl ")
        return Screen(moment, text.replace(str(self.folder), "/home"))

    def _written_link(self) -> str:
        file = self.run / "link"
        return file.read_text().strip() if file.exists() else ""
