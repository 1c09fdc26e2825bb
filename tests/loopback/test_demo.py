"""`p2prl demo --listed` with a cheat: its volunteers find the run at its index, it learns, gives the cheat no credit,
ends after its updates, and leaves nothing behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from p2prl_lab.testing.run_audit import settled_groups
from p2prl_lab.testing.swarm_processes import (
    SwarmProcesses,
    command,
    folder_if_running,
    wait_until,
)
from tests.command_doc import json_keys
from tests.json_shapes import breaches

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]

KEYS = {
    "reward_before",
    "reward_after",
    "updates",
    "versions_published",
    "staleness_p50",
    "staleness_p95",
    "staleness_max",
    "weight_bytes_from_volunteers_share",
    "groups_verified",
    "groups_rejected",
    "groups_by_contributor",
    "wall_s",
}
UPDATES = 60


def test_a_demo_learns_and_leaves_nothing_behind(tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "swarm")
    run = tmp_path / "run"
    with swarm.running():
        demo = swarm.start(
            "demo", "demo", "--listed", "--out", str(run), "--updates", str(UPDATES), "--cheats", "1", "--json"
        )
        folders: set[Path] = set()
        most_roles = 0

        def every_process_came_up() -> bool:
            """Six daemons: learner, three volunteers, cheat, validator; the board reads the run folder."""
            nonlocal most_roles
            processes = demo.tree()
            found = (folder_if_running(p) for p in processes if _name(p) == "p2pd")
            folders.update(folder for folder in found if folder is not None)
            most_roles = max(most_roles, len(_role_processes(processes)))
            return len(folders) >= 6 and most_roles >= 7

        # The cheat does not stay: it is excluded and ends.
        wait_until(lambda: every_process_came_up() or not demo.is_alive, seconds=180, what="six daemons")
        assert demo.wait(240) == 0, demo.log[-3000:]
        swarm.await_end(5)
        assert not [folder for folder in folders if folder.exists()]
    for number in (1, 2, 3):
        said = (run / "logs" / f"volunteer-{number}.log").read_text()
        assert f"Going on to {run.name}" in said, "it found the run at the index"
    document = json.loads(demo.log.splitlines()[-1])
    _check(document, run)
    assert json.loads((run / "summary.json").read_text()) == document
    assert (run / "reward.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")

    result = command("eval", str(run), "--seed", "77", "--json", environment=swarm.environment())
    assert result.returncode == 0, result.stderr
    assert abs(json.loads(result.stdout)["reward"] - document["reward_after"]) <= 0.04


def _check(document: dict[str, Any], run: Path) -> None:
    assert set(document) == json_keys("p2prl demo") >= KEYS
    assert breaches(document, "p2prl demo") == []
    assert document["reward_before"] <= 0.45
    assert document["reward_after"] >= 0.80
    assert document["updates"] == UPDATES
    assert document["versions_published"] == UPDATES // 5 + 1
    assert document["weight_bytes_from_volunteers_share"] > 0.25
    fetched_bytes = document["patch_bytes"] + document["whole_bytes"]
    assert document["patch_bytes"] > 0
    assert fetched_bytes < 0.6 * document["brought_bytes"], "versions come as patches"
    assert document["network_resident_bytes_max"] < 80e6
    people = document["groups_by_contributor"]
    assert people["cheat-1"] == 0
    assert all(people[f"volunteer-{n}"] > 0 for n in (1, 2, 3))
    assert document["groups_rejected"] > 0
    assert sum(people.values()) == document["groups_verified"]
    verified, rejected = settled_groups(run)
    assert (verified, rejected) == (document["groups_verified"], document["groups_rejected"])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ages = sorted(age for line in lines for age in line["staleness"])
    assert document["staleness_max"] == ages[-1]
    assert document["staleness_p50"] == ages[len(ages) // 2]


def _role_processes(processes: list[psutil.Process]) -> list[str]:
    """First argument of each role that runs as a separate process; the demo itself comes first and is none."""
    found = []
    for process in processes[1:]:
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if words[1:3] in (["-m", "p2prl"], ["-m", "p2prl.testing.cheating_volunteer"]):
            found.append(words[3])
    return found


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""
