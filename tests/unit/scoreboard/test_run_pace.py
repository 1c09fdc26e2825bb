"""Pace of a learner on its board: the share of the time with groups, what was foreseen, and the error of it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from p2prl.scoreboard.ledger.ledger_sources import PaceOfRun
from p2prl.scoreboard.ledger.run_folder_source import RunFolderSource
from p2prl.scoreboard.web.api import create_app
from p2prl.scoreboard.web.page import PageRequest, render_page
from p2prl_lab.testing.sample_ledgers import MemorySource, sample_run
from tests.unit.scoreboard.asgi import ask

WRITER = sample_run(0, steps=3)
PACE = PaceOfRun(realised=0.71, predicted=0.8, low=0.7, high=0.9, error=-0.04)
STATUS = {
    "plan/realised": 0.71,
    "plan/predicted_utilisation": 0.8,
    "plan/low": 0.7,
    "plan/high": 0.9,
    "plan/error": -0.04,
    "plan": "dp2",
}


def test_a_status_file_has_it_once_there_are_enough_updates() -> None:
    assert PaceOfRun.of_status(STATUS) == PACE
    assert PaceOfRun.of_status({"step": 3}) is None
    assert PaceOfRun.of_status({"plan/realised": 0.5}) == replace(
        PACE, realised=0.5, predicted=None, low=None, high=None, error=None
    )


@pytest.mark.parametrize("value", ["0.5", None, math.nan, math.inf])
def test_what_is_no_number_is_not_shown(value: object) -> None:
    assert PaceOfRun.of_status({**STATUS, "plan/realised": value}) is None
    assert PaceOfRun.of_status({**STATUS, "plan/error": value}) == replace(PACE, error=None)


def test_it_is_served_and_shown() -> None:
    app = create_app(MemorySource(WRITER, pace=PACE))
    served = json.loads(ask(app, "/api/v1/run").body)["pace"]
    assert served == {"realised": 0.71, "predicted": 0.8, "low": 0.7, "high": 0.9, "error": -0.04}
    page = " ".join(ask(app, "/").body.decode().split())
    assert "71 % of the time" in page
    assert "80 % foreseen, 70 % to 90 %" in page


def test_a_board_without_a_forecast_shows_what_was_and_one_without_the_folder_nothing() -> None:
    alone = replace(PACE, predicted=None, low=None, high=None, error=None)
    shown = render_page(MemorySource(WRITER, pace=alone).snapshot(), PageRequest())
    assert "71 % of the time" in shown
    assert "foreseen" not in shown
    assert "Training had groups" not in render_page(MemorySource(WRITER).snapshot(), PageRequest())


def test_a_source_beside_its_learner_asks_for_the_newest(tmp_path: Path) -> None:
    WRITER.write_journal(tmp_path / "journal.db").close()
    seen = iter((PACE, None))
    source = RunFolderSource(tmp_path / "journal.db", WRITER.manifest_raw, pace=lambda: next(seen))
    assert (source.snapshot().pace, source.snapshot().pace) == (PACE, None)
    source.close()
