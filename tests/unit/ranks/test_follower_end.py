"""A rank that fails leaves its reason to a learner that lives; ranks leave nothing behind one that was killed."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from p2prl.exit_codes import TEMPORARY
from p2prl.ranks import commands, follower
from p2prl.ranks.follower_process import RanksFolder
from p2prl_lab.testing.forked_roles import ForkedProgram


class _Input:
    """Standard input that is a pipe."""

    def __init__(self, pipe: int) -> None:
        self.buffer = os.fdopen(pipe, "rb")
        self.fileno = self.buffer.fileno


@pytest.mark.parametrize("killed", [False, True])
def test_a_reason_is_left_to_the_living_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    class Unmet:
        @staticmethod
        def on_host(*_: object, **__: object) -> object:
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

    status = follower.main(["1", meeting], threading.Lock())

    sys.stdin.buffer.close()
    if killed:
        assert status == 0
    else:
        os.close(write)
        assert status == TEMPORARY
        assert follower.reason_file(folder, 1).read_text() == "Connection closed by peer"


def test_ranks_whose_learner_dies_while_they_wait_for_it_end_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    meeting = msgspec.json.encode(commands.Meeting(ranks=3, folder=str(folder), threads=1)).decode()
    with ExitStack() as ranks:
        processes = [
            ranks.enter_context(
                ForkedProgram(
                    [sys.executable, "-m", "p2prl.ranks.follower_process", number, meeting],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for number in ("1", "2")
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == follower.READY
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()  # rank 0 never comes to the meeting
        assert [process.wait(30) for process in processes] == [0, 0]
    assert not folder.exists()


def test_the_last_rank_removes_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    first, last = RanksFolder(folder), RanksFolder(folder)

    first.leave()
    assert folder.exists(), "the other rank may open its meeting there: torch waits minutes for a folder that is gone"
    last.leave()
    assert not folder.exists()


def test_a_rank_that_opens_its_meeting_keeps_their_folder(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    folder.mkdir()
    rank = RanksFolder(folder)
    leaves = threading.Thread(target=rank.leave)
    with rank.opening:
        leaves.start()
        leaves.join(0.2)
        assert leaves.is_alive()
        assert folder.exists()
    leaves.join(10)
    assert not folder.exists()
