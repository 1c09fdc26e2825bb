"""`p2prl board`: a port in use is refused first, and an old ledger is never shown as the current one."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p2prl import errors
from p2prl.cli.commands.open_ledger import await_current_ledger
from p2prl.errors import P2PRLError, UnreachableError
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.swarm_source import SwarmSource
from p2prl_lab.testing.sample_ledgers import MemorySource, sample_run
from tests.unit.cli.invocation import invoke


def test_a_port_in_use_is_refused_before_anything_starts(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr("p2prl.cli.commands.board.ledger_of", lambda *given: opened.append(given))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = invoke("board", run, "--port", taken.getsockname()[1])
    assert isinstance(result.exception, errors.MachineError)
    assert "--port" in result.exception.remedy
    assert not opened


def test_a_wrong_source_is_named_even_when_the_port_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = invoke("board", "/nowhere", "--port", taken.getsockname()[1])
    assert "is not a run folder" in str(result.exception)


class _Scripted(SwarmSource):
    """A source that shows the snapshots of `story` one after the other, and the last one from then on."""

    def __init__(self, story: list[Snapshot]) -> None:
        self._story = story

    def snapshot(self) -> Snapshot:
        return self._story.pop(0) if len(self._story) > 1 else self._story[0]

    def failure(self) -> P2PRLError | None:
        return None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr("p2prl.cli.commands.open_ledger.time.monotonic", lambda: now[0])
    monkeypatch.setattr("p2prl.cli.commands.open_ledger.time.sleep", sleep)
    return now


def _kept(**changes: Any) -> Snapshot:
    snapshot = MemorySource(sample_run(0, steps=5)).snapshot()
    assert snapshot.board is not None
    return replace(snapshot, **{"connected_peers": {}, "signed_height": snapshot.board.height, **changes})


def test_an_old_ledger_is_not_printed_when_no_peer_answers(clock: list[float]) -> None:
    with pytest.raises(UnreachableError, match=r"no peer of the run answered .* may be out of date") as caught:
        await_current_ledger(_Scripted([_kept()]))
    assert caught.value.exit_code == 7
    assert clock[0] >= 30.0


def test_board_waits_briefly_for_a_newer_ledger(clock: list[float]) -> None:
    old, met = _kept(signed_height=3), _kept(signed_height=3, connected_peers={"learner": 1})
    await_current_ledger(_Scripted([old, old, met, _kept(connected_peers={"learner": 1})]))
    assert clock[0] < 1.0
    await_current_ledger(_Scripted([old, met]))
    assert 5.0 <= clock[0] < 7.0


def test_a_long_download_that_no_head_proves_yet_is_waited_for(clock: list[float]) -> None:
    met = {"signed_height": None, "connected_peers": {"learner": 1}}
    story = [_kept(**met, unproven_entries=count) for count in range(300)]
    await_current_ledger(_Scripted([*story, _kept(connected_peers={"learner": 1})]))
    assert 55.0 <= clock[0] < 65.0
