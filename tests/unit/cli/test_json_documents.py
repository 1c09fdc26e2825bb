"""`--json`: each command prints one object with the keys that docs/cli.md lists."""

from __future__ import annotations

import shutil
from pathlib import Path

from p2prl.cli.commands.sim_run import simulation_document
from p2prl.cli.commands.validate_worker import audit_document
from p2prl.cli.views.volunteer_view import progress_document
from p2prl.client.progress import Progress
from p2prl.clock import SystemClock
from p2prl.config.run_settings import RunFolder, open_run
from p2prl.learner.journal.journal import Journal
from p2prl.learner.signing_sender import SigningSender
from p2prl.sim.swarm import SwarmConfig, SwarmResult
from p2prl.validator.service import Audit
from tests.command_doc import json_keys
from tests.unit.cli.invocation import json_of


def test_documented_keys_of_short_commands(run: Path, tmp_path: Path) -> None:
    folder = open_run(run)
    assert set(json_of("status", "--home", tmp_path)) == json_keys("p2prl status")
    assert set(json_of("key", "show", "--home", tmp_path)) == json_keys("p2prl key show")
    assert set(json_of("key", "delegate", "--home", tmp_path / "a")) == json_keys("p2prl key delegate")
    assert set(json_of("key", "owner", "--home", tmp_path / "b")) == json_keys("p2prl key owner")
    peer = json_of("key", "delegate", "--home", tmp_path / "a")["machine"]
    assert set(json_of("key", "revoke", peer, "--home", tmp_path / "b")) == json_keys("p2prl key revoke")
    made = json_of("init", "other", "--in", tmp_path, "--model", folder.directory / "model", "--probe", "off")
    assert set(made) == json_keys("p2prl init")
    evaluated = json_of("eval", run, "--prompts", 8, "--device", "cpu")
    assert set(evaluated) == json_keys("p2prl eval")
    run = shutil.copytree(run, tmp_path / "run")
    sign_ledger(open_run(run))
    assert set(json_of("ledger", "dump", run, tmp_path / "ledger")) == json_keys("p2prl ledger dump")
    for source in (run, tmp_path / "ledger"):
        assert set(json_of("ledger", "verify", source)) == json_keys("p2prl ledger verify")
    assert set(json_of("board", run)) == json_keys("p2prl board")


def sign_ledger(folder: RunFolder) -> None:
    """What a learner does when it starts: an empty ledger, too, has a signed head."""
    journal = Journal(folder.paths.journal)
    SigningSender(folder.identity, folder.run, journal, SystemClock()).sign_ledger_head(step=0, finished=False)
    journal.close()


def test_documented_keys_of_workers() -> None:
    common = {"role", "run", "peer"}
    progress = Progress("", 0, 0, {}, {}, {}, 0, 0.0, 0.0, (-1, 0, 0), 0, 0, 0, 0, 0)
    assert common | set(progress_document(progress)) == json_keys("p2prl join")
    assert common | set(audit_document(Audit(0, 0, 0, 0, 0, 0))) == json_keys("p2prl validate")


def test_documented_keys_of_a_simulation() -> None:
    config = SwarmConfig(volunteers=1, updates=1, delay="const:0")
    result = SwarmResult(
        trace_hash="", reward_before=0.0, reward_after=0.0, updates=1, staleness=(0.0, 0.0, 0.0), virtual_s=0.0,
        messages=0, bytes=0, groups_verified=0, groups_rejected=0, caught_up_s=0.0,
    )  # fmt: skip
    assert set(simulation_document(config, result, wall_s=0.0)) == json_keys("p2prl sim")


def test_status_of_a_run_folder(run: Path) -> None:
    (worker,) = json_of("status", run)["workers"]
    assert (worker["run"], worker["role"], worker["running"]) == ("unit", "learner", False)
