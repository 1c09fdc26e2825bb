"""What the operator of a run is shown: a link worth sharing, plain progress, and never an old board as today's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from p2prl.cli import console as screen
from p2prl.cli import inspect, operate
from p2prl.cli.reach import reach_warning, worth_sharing
from p2prl.errors import P2PRLError, UnreachableError
from p2prl.scoreboard.ledger_sources import Snapshot
from p2prl.scoreboard.swarm_source import SwarmSource
from p2prl.testing.sample_ledgers import MemorySource, sample_run

HERE = "/ip4/127.0.0.1/tcp/1/p2p/x"
HERE6 = "/ip6/::1/tcp/1/p2p/x"
HOME = "/ip4/192.168.1.7/tcp/1/p2p/x"
WORLD = "/ip4/8.8.8.8/tcp/1/p2p/x"
RELAYED = "/ip4/10.0.0.1/tcp/1/p2p/r/p2p-circuit/p2p/x"
NAMED = "/dns4/example.org/tcp/1/p2p/x"


@pytest.mark.parametrize(
    ("addresses", "shared", "words"),
    [
        ((HERE,), (HERE,), "this machine only"),
        ((HERE, HERE6), (HERE, HERE6), "this machine only"),
        ((HERE, HOME), (HOME,), "local network only"),
        ((HERE, HOME, HERE6, WORLD), (HOME, WORLD), ""),
        ((HERE, RELAYED), (RELAYED,), ""),
        ((NAMED,), (NAMED,), ""),
    ],
)
def test_a_link_carries_what_others_can_dial_and_says_from_where(
    addresses: tuple[str, ...], shared: tuple[str, ...], words: str
) -> None:
    assert worth_sharing(addresses) == shared
    warning = reach_warning(shared)
    assert words in warning
    assert bool(words) == bool(warning)


def test_the_learners_line_counts_towards_the_end_and_skips_the_first_interval() -> None:
    metrics = {
        "step": 12,
        "reward": 0.5,
        "loss": 0.1,
        "staleness_p50": 3,
        "staleness_max": 5,
        "peers": 4,
        "seconds": 97.0,
    }
    first = operate._line("chain", metrics, planned=200, first=True)
    assert "step 12/200 " in first
    assert "from 4 peers" in first
    assert "s/update" not in first
    endless = operate._line("chain", metrics, planned=0, first=False)
    assert "step 12 " in endless
    assert "97.00 s/update" in endless


def test_without_a_terminal_progress_is_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    now = [100.0]
    monkeypatch.setattr(screen, "say", said.append)
    monkeypatch.setattr("p2prl.cli.console.time.monotonic", lambda: now[0])
    with screen.progress("making", quiet=False) as tell:
        for second in range(26):
            now[0] = 100.0 + second
            tell("warm start", second / 100)
        tell("writing", 0.9)
    assert said == ["making: warm start …", "making: warm start 10%", "making: warm start 20%", "making: writing …"]


class _Board(SwarmSource):
    """A board beside whose clock nothing happens but what `story` tells, one snapshot after the other."""

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

    monkeypatch.setattr("p2prl.cli.inspect.time.monotonic", lambda: now[0])
    monkeypatch.setattr("p2prl.cli.inspect.time.sleep", sleep)
    return now


def _kept(**changes: Any) -> Snapshot:
    snapshot = MemorySource(sample_run(0, steps=5)).snapshot()
    assert snapshot.board is not None
    return replace(snapshot, **{"connected_peers": {}, "signed_height": snapshot.board.height, **changes})


def test_an_old_board_is_not_printed_when_nobody_answers(clock: list[float]) -> None:
    with pytest.raises(UnreachableError, match=r"no peer of the run answered .* may be out of date") as caught:
        inspect._await_run(_Board([_kept()]))
    assert caught.value.exit_code == 7
    assert clock[0] >= 30.0


def test_a_board_that_reached_somebody_is_printed_with_the_news_or_after_a_wait_for_it(clock: list[float]) -> None:
    old, met = _kept(signed_height=3), _kept(signed_height=3, connected_peers={"learner": 1})
    inspect._await_run(_Board([old, old, met, _kept(connected_peers={"learner": 1})]))
    assert clock[0] < 1.0
    inspect._await_run(_Board([old, met]))
    assert 5.0 <= clock[0] < 7.0
