"""kill -9 at random times, sleep, a disconnect: no acknowledged work is lost or counted twice, no process is left."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from p2prl_lab.testing.crash_plan import CrashPlan
from p2prl_lab.testing.crash_run import CrashRun
from p2prl_lab.testing.disconnect_run import DisconnectPlan, disconnect_volunteer
from p2prl_lab.testing.swarm_processes import SwarmProcesses, command

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def made_run(warm_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder that has not been started yet, with the preset's own model and settings."""
    root = tmp_path_factory.mktemp("made")
    options = ("--preset", "chain4", "--in", str(root), "--staleness", "1024", "--publish-every", "5")
    model = ("--model", str(warm_run / "model"), "--probe", "off")
    made = command("init", "run", *options, *model, environment=SwarmProcesses(root).environment())
    assert made.returncode == 0, made.stderr
    shutil.copyfile(warm_run / "run.toml", root / "run" / "run.toml")
    return root / "run"


@pytest.fixture
def run(made_run: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made_run, tmp_path / "run")


def test_a_run_survives_kills_of_its_roles_at_random_moments_and_sleep(run: Path, tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "swarm", forks=True)
    plan = CrashPlan(kills=4, updates=60, seed=3, volunteers=2, pause_s=(0.5, 2.0), naps=2, share=0.3)
    with swarm.running():
        report = CrashRun(swarm, run, plan, say=print).execute()
    audit = report.audit
    assert audit is not None
    assert len(report.killed) == plan.kills
    assert len(report.slept) == plan.naps
    assert report.resumes_checked >= 1
    assert audit.updates == plan.updates
    assert audit.policies_reproduced == audit.versions == 13
    assert audit.rejected == 0
    assert report.reward >= 0.75  # 60 updates here; the full 300 of lab/p2prl_lab/torture.py end above .9
    assert report.learner_back_s < 20.0


def test_work_done_while_cut_off_is_used_afterwards(run: Path, tmp_path: Path) -> None:
    swarm = SwarmProcesses(tmp_path / "swarm", forks=True)
    with swarm.running():
        report = disconnect_volunteer(swarm, run, DisconnectPlan(cut_s=6.0), say=print)
    assert report.versions_sampled <= 2
    assert report.verified > 0
    assert report.trained_on > 0
    assert report.staleness_max >= report.updates_meanwhile // 2
