"""An owner who pauses, resumes and limits the workers of a test at seeded random moments."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from p2prl.controls.control_socket import NAME, ask
from p2prl.controls.messages import LimitsRequest, PauseRequest, Request, ResumeRequest
from p2prl.errors import MachineError, RemoteProtocolError

MOST_PAUSE_S = 3.0
"""Pauses end by themselves, so that the run can end too."""


class RestlessOwner:
    """Commands to the workers under some homes; those that are down hear none."""

    def __init__(self, homes: Sequence[Path], rng: random.Random) -> None:
        self._homes = homes
        self._rng = rng
        self.given: Counter[str] = Counter()
        """Commands that a worker has answered, by kind."""

    def act(self) -> None:
        """Give one command to every worker of one home. AssertionError when a worker refuses it."""
        home = self._rng.choice(self._homes)
        request = self._command()
        for path in sorted(home.glob(f"*/{NAME}")):
            try:
                answer = ask(path.parent, request)
            except (MachineError, RemoteProtocolError):
                continue  # killed in the middle of its answer
            if answer is not None:
                assert not answer.error, answer.error
                self.given[type(request).__name__] += 1

    def _command(self) -> Request:
        kind = self._rng.choice(("pause", "pause", "resume", "limits"))
        if kind == "pause":
            return PauseRequest(
                for_s=self._rng.uniform(0.1, MOST_PAUSE_S), keep_relaying=self._rng.choice((True, False))
            )
        if kind == "resume":
            return ResumeRequest()
        changes = {"net.up": self._rng.choice(("off", "5Mbit", "50Mbit"))}
        if self._rng.random() < 0.3:
            changes["keep-relaying"] = self._rng.choice(("yes", "no"))
        return LimitsRequest(changes=changes)
