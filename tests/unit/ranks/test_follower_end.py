"""A rank that fails leaves its reason to a learner that lives, and nothing behind one that was killed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from p2prl.exit_codes import TEMPORARY
from p2prl.ranks import commands, follower


class _Input:
    """Standard input that is a pipe."""

    def __init__(self, pipe: int) -> None:
        self.buffer = os.fdopen(pipe, "rb")
        self.fileno = self.buffer.fileno


@pytest.mark.parametrize("killed", [False, True])
def test_a_reason_is_left_to_the_living_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    class Unmet:
        @staticmethod
        def in_folder(*_: object, **__: object) -> object:
            raise RuntimeError("Connection closed by peer")

    read, write = os.pipe()
    os.write(write, b"a command that was not read")
    if killed:
        os.close(write)
    folder = tmp_path / "ranks"
    folder.mkdir()
    monkeypatch.setattr(follower, "RankGroup", Unmet)
    monkeypatch.setattr(follower, "use_threads", lambda _: None)
    monkeypatch.setattr(sys, "stdin", _Input(read))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO()))
    meeting = msgspec.json.encode(commands.Meeting(ranks=2, folder=str(folder), threads=1)).decode()

    status = follower.main(["1", meeting])

    sys.stdin.buffer.close()
    if killed:
        assert status == 0
        assert not folder.exists()
    else:
        os.close(write)
        assert status == TEMPORARY
        assert follower.reason_file(folder, 1).read_text() == "Connection closed by peer"


def test_a_rank_whose_learner_dies_while_it_waits_for_others_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    meeting = msgspec.json.encode(commands.Meeting(ranks=2, folder=str(folder), threads=1)).decode()
    program = [sys.executable, "-m", "p2prl.ranks.follower_process", "1", meeting]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == follower.READY
        process.stdin.close()  # rank 0 never comes to the meeting
        assert process.wait(30) == 0
    assert not folder.exists()
