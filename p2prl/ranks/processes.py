"""Processes of the other ranks: started with the learner, watched while it runs, and ended with it."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from p2prl.errors import ProcessLostError
from p2prl.ranks import commands
from p2prl.ranks.follower import READY, reason_file
from p2prl.ranks.process_group import RankGroup, folder_store

_END_S = 5.0
"""Time for a rank to end by itself once its pipe is closed."""


class RankProcesses:
    """All ranks of a learner, seen from rank 0."""

    def __init__(self, meeting: commands.Meeting) -> None:
        """Start the others, and wait until all have met. `ProcessLostError` when one ends before."""
        self._folder = Path(meeting.folder)
        self._end: str | None = None
        atexit.register(shutil.rmtree, self._folder, ignore_errors=True)
        told = msgspec.json.encode(meeting).decode()
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-m", "p2prl.ranks.follower_process", str(number), told],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C in the terminal is the learner's, which then finishes its update
            )
            for number in range(1, meeting.ranks)
        ]
        try:
            for process in self._processes:
                assert process.stdout is not None
                if process.stdout.readline() != READY:
                    process.wait(_END_S)
                    self.check()
            self.group = RankGroup.on_host(folder_store(self._folder, meeting.ranks), rank=0, ranks=meeting.ranks)
            """Rank 0 among them."""
        except BaseException:
            self.close()
            raise

    def send(self, command: commands.Command) -> None:
        """Send a command to all other ranks. `ProcessLostError` when one is gone."""
        for process in self._processes:
            assert process.stdin is not None
            try:
                commands.send(process.stdin, command)
            except OSError:
                self.lost()
                raise

    def check(self) -> None:
        """`ProcessLostError` if a rank has ended."""
        for number, process in enumerate(self._processes, start=1):
            if self._end is None and (status := process.poll()) is not None:
                self._end = self._how_it_ended(number, status)
                shutil.rmtree(self._folder, ignore_errors=True)  # nobody meets there any more
        if self._end is not None:
            raise ProcessLostError(f"rank {self._end}", remedy="Start again: the run resumes before this update.")

    def lost(self, wait_s: float = _END_S) -> None:
        """A collective or a pipe has failed: wait a moment for the rank that ended, and raise `ProcessLostError`."""
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            self.check()
            time.sleep(0.05)

    def close(self) -> None:
        """End the other ranks."""
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(OSError):  # it is gone, and what was unsent with it
                process.stdin.close()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _how_it_ended(self, number: int, status: int) -> str:
        reason = reason_file(self._folder, number)
        if reason.exists():
            return f"{number} of the learner failed: {reason.read_text()}"
        how = f"was ended by signal {-status}" if status < 0 else f"ended with exit code {status}"
        return f"{number} of the learner {how}"


def meeting_folder() -> Path:
    """A new folder for the ranks to meet in, closed to other users."""
    return Path(tempfile.mkdtemp(prefix="p2prl-ranks-"))
