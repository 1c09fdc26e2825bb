"""A run outlives its learner's machine: the learner is killed for ever, its standby learner promoted, and a volunteer
goes on. The old machine comes back, and stops."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from p2prl.config.worker_folder import read_status
from p2prl.learner.published_policies import chained_weights
from p2prl.models.weights.layout import weights_digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import PolicyManifest
from p2prl_lab.testing.swarm_processes import (
    LISTEN,
    RoleProcess,
    SwarmProcesses,
    command,
    kill_tree,
    rows,
    wait_until,
)

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1800)]

IDENTITY = 6
GIVEN = ("run.manifest", "key.json", "run.toml", "link")
"""What the owner copies to the second machine."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    options = ("--preset", "chain4", "--in", str(tmp_path), "--probe", "off")
    result = command("init", "run", *options, environment=SwarmProcesses(tmp_path).environment())
    assert result.returncode == 0, result.stderr
    settings = tmp_path / "run" / "run.toml"
    settings.write_text(settings.read_text().replace("\ngroups_per_update = 16 ", "\ngroups_per_update = 4 "))
    return tmp_path / "run"


def versions(run: Path) -> list[bytes]:
    """Envelopes of the signed versions, oldest first."""
    return [raw for (raw,) in rows(run / "journal.db", "SELECT raw FROM policies ORDER BY version")]


def ledger(run: Path) -> list[bytes]:
    """Entries of the ledger."""
    return [raw for (raw,) in rows(run / "journal.db", "SELECT raw FROM ledger ORDER BY height")]


def weights(run: Path, envelope: bytes) -> bytes:
    """The digest of a version's weights, as they are on disk."""
    manifest = body_of(open_envelope(envelope, now=None), PolicyManifest)
    data = chained_weights(run / "blobs", manifest)
    assert data is not None
    digest = weights_digest(data)
    assert digest == manifest.weights_digest
    return digest


def said(role: RoleProcess) -> str:
    """Its output, without line breaks."""
    return " ".join(role.log.split())


def test_the_learner_is_killed_and_its_standby_promoted(run: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    swarm = SwarmProcesses(tmp_path / "swarm", forks=True)
    with swarm.running():
        learner = swarm.start("learner", "learn", str(run), "--updates", "0", *LISTEN)
        wait_until(lambda: (run / "link").exists(), seconds=120, what="a link")
        link = (run / "link").read_text().strip()
        second.mkdir()
        for name in GIVEN:
            shutil.copy2(run / name, second / name)
        standby = swarm.start("standby", "learn", str(second), "--standby", *LISTEN)
        volunteer = swarm.start("volunteer", "join", link, "--threads", "1", *LISTEN)
        wait_until(lambda: "keeps step" in said(learner), seconds=180, what="a standby that keeps step")
        wait_until(lambda: len(versions(run)) > 3, seconds=240, what="versions")
        wait_until(lambda: read_status(second / "status.json").get("version", -1) > 0, seconds=240, what="a copy")
        shown = command("status", str(second), environment=swarm.environment()).stdout
        assert "standby learner" in shown.splitlines()[0]
        assert "ledger entr" in shown.splitlines()[1]
        kill_tree(learner)
        known = versions(run), ledger(run)
        kill_tree(standby)
        promoted = command("promote", str(second), "--yes", "--json", environment=swarm.environment())
        assert promoted.returncode == 0, promoted.stderr
        assert "standby learner" not in command("status", str(second), environment=swarm.environment()).stdout
        held = versions(second), ledger(second)
        assert held[0]
        assert all(mine == theirs[: len(mine)] for mine, theirs in zip(held, known, strict=True))
        assert weights(second, held[0][-1]) == weights(run, held[0][-1])

        successor = swarm.start("successor", "learn", str(second), "--updates", "0", *LISTEN)
        wait_until(lambda: len(versions(second)) > len(held[0]) + 2, seconds=240, what="versions of the successor")
        assert volunteer.is_alive, volunteer.log
        wait_until(lambda: (second / "peers").exists(), seconds=120, what="peers that are remembered")
        shutil.copy2(second / "peers", run / "peers")  # it died within seconds; another has met them by then
        again = swarm.start("again", "learn", str(run), "--updates", "0", *LISTEN)
        assert again.wait(240) == IDENTITY, again.log
        assert "another machine" in said(again)
        assert successor.is_alive
        assert volunteer.is_alive
        assert (second / "link").read_text().split("?")[0] == link.split("?")[0]
        assert ledger(second)[: len(held[1])] == held[1]
    verified = command("ledger", "verify", str(second), environment=swarm.environment())
    assert verified.returncode == 0, verified.stderr
    assert "two different policies" not in volunteer.log
