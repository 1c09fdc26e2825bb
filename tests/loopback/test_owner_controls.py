"""The owner's commands to a worker that runs: groups stop with a pause and go on after it, and nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.loopback.program import LISTEN, eventually, live_learner, p2prl, running, spool_states, volunteer_status

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]


def told(home: Path, *arguments: object) -> dict[str, Any]:
    """What the one worker under `home` answers to a command."""
    done = p2prl(*arguments, "--home", home, "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    return dict(document["workers"]["seat-1"])


def made(home: Path) -> int:
    """Groups in the worker's spool."""
    return sum(spool_states(home).values()) if list(home.glob("seat-1/*/spool.db")) else 0


def test_pause_stops_the_groups_and_resume_goes_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with live_learner(tmp_path) as (run, _):
        link = (run / "link").read_text().strip()
        with running(tmp_path / "join.log", "join", link, "--home", home, "--slots", 1, *LISTEN) as worker:
            eventually(lambda: volunteer_status(home).get("groups", {}).get("verified", 0) > 0)
            assert (home / "seat-1" / "control").stat().st_mode & 0o777 == 0o600

            paused = told(home, "pause", "--for", "2h")
            assert (paused["state"], paused["relays"]) == ("paused", False)
            eventually(lambda: volunteer_status(home)["state"] == "paused by you")
            before, since = made(home), volunteer_status(home)["time"]
            eventually(lambda: volunteer_status(home)["time"] >= since + 2.0)
            assert made(home) == before
            assert volunteer_status(home)["peers"] == {}

            assert told(home, "resume")["state"] == "working"
            eventually(lambda: made(home) > before)
            verified = volunteer_status(home)["groups"]["verified"]
            eventually(lambda: volunteer_status(home)["groups"]["verified"] > verified)

            assert told(home, "stop")["state"] == "ending"
            assert worker.process.wait(timeout=60) == 0, worker.said()
            assert "as p2prl stop asks" in worker.said()
            assert not (home / "seat-1" / "control").exists()
