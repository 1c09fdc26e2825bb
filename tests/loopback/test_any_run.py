"""`join --any` over sockets: two volunteers serve two listed runs, one of which ends, and go on with nothing lost."""

from __future__ import annotations

import json
import re
import sqlite3
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from p2prl.config.new_run import init_run
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.small_models.tiny_models import tiny_model
from tests.loopback.program import LISTEN, SETTINGS, RunningRole, eventually, p2prl, running

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]


def make_run(directory: Path, name: str, seed: int) -> Path:
    made = tiny_model(seed=seed)
    made.model.save_pretrained(directory / f"{name}-model")
    made.tokenizer.save_pretrained(directory / f"{name}-model")
    plan = RunPlan(name=name, goal=f"goal of {name}", task="chain4", model=str(directory / f"{name}-model"))
    init_run(directory / name, plan, settings=SETTINGS, on_progress=lambda stage, share: None)
    return directory / name


def url_of(index: RunningRole) -> str:
    def found() -> list[str]:
        return re.findall(r"http://127\.0\.0\.1:\d+", index.said())

    eventually(lambda: bool(found()))
    return found()[0]


def listed(url: str, home: Path) -> dict[str, Any]:
    done = p2prl("runs", "--index", url, "--home", home, "--json")
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {"runs": [], "left_out": []}


def state_of(home: Path) -> dict[str, Any]:
    path = home / "any.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def states(home: Path, run_name: str) -> Counter[str]:
    """Groups of a run by state, over the worker folders of a home."""
    found: Counter[str] = Counter()
    for status in home.glob("seat-*/*/status.json"):
        spool = status.with_name("spool.db")
        if json.loads(status.read_text()).get("run") == run_name and spool.exists():
            with closing(sqlite3.connect(f"file:{spool}?mode=ro", uri=True)) as opened:
                found.update(dict(opened.execute("SELECT state, count(*) FROM groups GROUP BY state").fetchall()))
    return found


def test_volunteers_go_on_from_a_run_that_ends_and_lose_nothing(tmp_path: Path) -> None:
    ends, goes_on = make_run(tmp_path, "ends-soon", 3), make_run(tmp_path, "goes-on", 4)
    homes = [tmp_path / "ann", tmp_path / "bob"]
    with ExitStack() as stack:

        def start(name: str, *arguments: object) -> RunningRole:
            return stack.enter_context(running(tmp_path / f"{name}.log", *arguments))

        index = start("index", "index", "serve", "--listen", "127.0.0.1:0")
        url = url_of(index)
        learner = start("ends", "learn", ends, "--updates", 0, "--list", url, *LISTEN)
        start("goes", "learn", goes_on, "--updates", 0, "--list", url, *LISTEN)
        eventually(lambda: len(listed(url, homes[0])["runs"]) == 2)
        assert "Public from now on" in learner.said()

        first = {"ann": [(ends / "link").read_text().strip()], "bob": ["--prefer", "goes-on"]}
        workers = [
            start(home.name, "join", *first[home.name], "--any", "--index", url, "--home", home, "--slots", 1, *LISTEN)
            for home in homes
        ]

        def served() -> set[str]:
            return {name for name in ("ends-soon", "goes-on") for home in homes if states(home, name)["verified"]}

        eventually(lambda: served() == {"ends-soon", "goes-on"}, seconds=150)
        before = sum((states(home, "ends-soon") for home in homes), Counter())
        assert learner.stop() == 130  # down for now: a pause
        eventually(lambda: all(state_of(home).get("name") == "goes-on" for home in homes), seconds=120)
        assert any(
            "its learner is down for now" in change["text"] for home in homes for change in state_of(home)["changes"]
        )
        done = sum((states(home, "goes-on") for home in homes), Counter())["verified"]
        eventually(lambda: sum((states(home, "goes-on") for home in homes), Counter())["verified"] > done)
        after = sum((states(home, "ends-soon") for home in homes), Counter())
        assert sum(after.values()) >= sum(before.values())
        assert after["verified"] >= before["verified"]

        for worker in workers:
            assert worker.stop() == 130, worker.said()
            assert "Traceback" not in worker.said()
