"""Evaluations on a board: the learner's own figures, rounded, escaped, and absent where there are none."""

from __future__ import annotations

import json

import pytest

from p2prl.scoreboard.documents.api_views import NotReadyError
from p2prl.scoreboard.documents.evaluation_view import evaluations_document
from p2prl.scoreboard.summary import summary
from p2prl.scoreboard.web.api import create_app
from p2prl.scoreboard.web.page import PageRequest, render_page
from p2prl.tasks.evaluation_report import CompletionOutcome, PromptOutcome, task_report
from p2prl_lab.testing.sample_ledgers import MemorySource, sample_run
from tests.unit.scoreboard.asgi import ask

WRITER = sample_run(0, steps=3)


def line(version: int, task: str = "sums", *, samples: int = 2) -> dict[str, object]:
    """A line of the results file: 1 prompt of 3 passes greedily, 2 of 3 with one of two samples."""
    outcomes = [
        PromptOutcome(_completion(greedy), tuple(_completion(score) for score in sampled[:samples]))
        for greedy, sampled in ((1.0, (1.0, 0.0)), (0.0, (0.0, 1.0)), (0.0, (0.0, 0.0)))
    ]
    report = task_report(outcomes, split="held-out", pass_above=0.5)
    return {"version": version, "step": 2 * version, "time": 1_800_000_000.5, "seconds": 1.0, "tasks": {task: report}}


def _completion(score: float) -> CompletionOutcome:
    return CompletionOutcome(score=score, tokens=4, finished=score > 0, logprob_sum=-2.0)


def test_the_document_has_the_figures_of_the_report() -> None:
    source = MemorySource(WRITER, evaluations=(line(0), line(10)))
    document = evaluations_document(source.snapshot(), limit=1)
    assert document.total == 2
    (only,) = document.evaluations
    assert (only.version, only.step, only.evaluated_at) == (10, 20, "2027-01-15T08:00:00Z")
    (task,) = only.tasks
    assert (task.task, task.split, task.prompts, task.samples) == ("sums", "held-out", 3, 2)
    assert task.greedy_pass.rate == pytest.approx(1 / 3, abs=1e-6)
    assert task.greedy_pass.low < 1 / 3 < task.greedy_pass.high
    assert {k: round(rate.rate, 4) for k, rate in task.pass_at.items()} == {"1": 0.3333, "2": 0.6667}
    assert task.score_mean == pytest.approx(1 / 3, abs=1e-6)
    assert task.entropy_per_token == 0.5
    assert task.truncated_share == pytest.approx(6 / 9, abs=1e-6)


def test_greedy_alone_has_no_sampled_figures() -> None:
    source = MemorySource(WRITER, evaluations=(line(0, samples=0),))
    (task,) = evaluations_document(source.snapshot(), limit=9).evaluations[0].tasks
    assert (task.pass_at, task.score_mean, task.entropy_per_token) == ({}, None, None)
    assert "On prompts it is never trained on" in render_page(source.snapshot(), PageRequest())


def test_served_and_shown() -> None:
    app = create_app(MemorySource(WRITER, evaluations=(line(0), line(10, "<b>sums</b>"))))
    served = json.loads(ask(app, "/api/v1/evaluations?limit=1").body)
    assert [each["version"] for each in served["evaluations"]] == [10]
    page = ask(app, "/").body.decode()
    assert "v10" in page
    assert "&lt;b&gt;sums" in page
    assert "<b>sums" not in page
    assert page.index("v10") < page.index('<td data-label="version">v0')


def test_the_summary_has_the_newest_twenty() -> None:
    source = MemorySource(WRITER, evaluations=tuple(line(version) for version in range(21)))
    assert [each["version"] for each in summary(source)["evaluations"]] == list(range(1, 21))


def test_a_board_without_them_shows_none() -> None:
    snapshot = MemorySource(WRITER).snapshot()
    assert evaluations_document(snapshot, limit=9).evaluations == []
    assert "never trained on" not in render_page(snapshot, PageRequest())
    with pytest.raises(NotReadyError):
        evaluations_document(MemorySource(WRITER, known=False).snapshot(), limit=9)
