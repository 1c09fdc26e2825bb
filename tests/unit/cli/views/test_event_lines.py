"""Events of a worker: one line of JSON for each change, and none without being asked."""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from p2prl.cli.views import volunteer_view as event_lines
from p2prl.cli.views.volunteer_view import EventLines, progress_document
from tests.json_shapes import breaches, promised
from tests.unit.cli.views.test_worker_views import BUSY


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for event in events:
        assert breaches({event["event"]: event}, "p2prl join --events") == []
    return events


def test_every_event_is_promised_and_written() -> None:
    kinds = {path.split(".")[1] for path in promised()["p2prl join --events"]}
    assert kinds == set(re.findall(r'self\._write\(\s*"(\w+)"', inspect.getsource(event_lines))) | {"online", "offline"}


def test_changes_become_events(capsys: pytest.CaptureFixture[str]) -> None:
    events = EventLines(asked=True, now=lambda: 5.0)
    events.phase("finding the run")
    events.notice("a sentence")
    document = progress_document(BUSY)
    for _ in range(2):
        events.progress(document)
    seen = written(capsys)
    assert [event["event"] for event in seen] == ["phase", "notice", "state", "version"]
    assert seen[0] == {"event": "phase", "time": 5.0, "name": "finding the run", "detail": ""}
    assert (seen[3]["version"], seen[3]["learner_step"]) == (7, 14)
    events.progress(progress_document(replace(BUSY, groups={"verified": 4})))
    events.progress(progress_document(replace(BUSY, groups={"verified": 4, "generated": 3})))
    (judged,) = written(capsys)
    assert (judged["event"], judged["groups"]) == ("judged", {"verified": 4})


def test_links_that_go_and_come_are_events(capsys: pytest.CaptureFixture[str]) -> None:
    events = EventLines(asked=True)
    alone = replace(BUSY, peers={})
    for progress in (BUSY, alone, alone, BUSY):
        events.progress(progress_document(progress))
    names = [event["event"] for event in written(capsys)]
    assert names == ["state", "version", "offline", "online"]


def test_nothing_is_written_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    events = EventLines(asked=False)
    events.phase("x")
    events.progress(progress_document(BUSY))
    assert written(capsys) == []
