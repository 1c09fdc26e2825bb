"""`--json`: each command prints one object with the keys that docs/cli.md lists."""

from __future__ import annotations

import re
import shutil
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from p2prl.bench.draw_cost.benchmark import DrawCost
from p2prl.bench.engine.benchmark import EngineRow
from p2prl.bench.hot_swap.benchmark import SwapReport
from p2prl.cli.commands import certificate_make
from p2prl.cli.commands.seed_worker import seeding_document
from p2prl.cli.commands.sim_run import simulation_document
from p2prl.cli.commands.validate_worker import audit_document
from p2prl.cli.views.volunteer_view import progress_document
from p2prl.client.progress import Progress
from p2prl.client.seeder import Seeding
from p2prl.clock import SystemClock
from p2prl.config.run_settings import RunFolder, open_run
from p2prl.learner.journal.journal import Journal
from p2prl.learner.signing_sender import SigningSender
from p2prl.sim.swarm import SwarmConfig, SwarmResult
from p2prl.testing.sample_ledgers import LedgerWriter, MemorySource, identity, receipt
from p2prl.validator.service import Audit
from tests.command_doc import json_keys, section
from tests.unit.cli.invocation import commands, json_of
from tests.unit.house.source_tree import ROOT

COMPARED = re.compile(r'json_keys\(\s*"(p2prl [a-z ]+)"')
"""A comparison of a command's document with its documented keys, in any test."""

LONG = "p2prl bench "
"""Benchmarks take minutes. What their tables hold is compared where a row is one dataclass."""


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

    assert common | set(seeding_document(Seeding(state="", version=0, chunks_held=0, chunks=0))) == json_keys(
        "p2prl seed"
    )


def test_documented_keys_of_teams(tmp_path: Path) -> None:
    home = tmp_path / "home"
    made = json_of("team", "create", "Red Pandas", "--home", tmp_path)
    assert set(made) == json_keys("p2prl team create")
    assert set(json_of("team", "rename", "Blue Pandas", "--home", tmp_path)) == json_keys("p2prl team rename")
    joined = json_of("team", "join", made["invite"], "--home", home)
    assert set(joined) == json_keys("p2prl team join")
    assert all(f"`{key}`" in section("p2prl team join") for key in joined["members"][0])
    assert set(json_of("team", "show", "--home", home)) == json_keys("p2prl team show")
    assert set(json_of("team", "leave", "--home", home)) == json_keys("p2prl team leave")


def test_documented_keys_of_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, volunteer = LedgerWriter(), identity("volunteer")
    writer.receipts(0, receipt(0, volunteer))
    monkeypatch.setattr(certificate_make, "ledger_of", lambda *_: nullcontext(MemorySource(writer)))
    monkeypatch.setattr(certificate_make, "await_current_ledger", lambda _: None)
    monkeypatch.setattr(certificate_make, "_signer", lambda *_: (volunteer, volunteer.peer_id))
    made = json_of("certificate", "LINK", "--out", tmp_path / "certificate.png")
    assert set(made) == json_keys("p2prl certificate")
    checked = json_of("certificate", "LINK", "--check", made["file"])
    assert checked == made


@pytest.mark.parametrize(
    ("command", "row", "beside"),
    [
        ("p2prl bench draw", DrawCost, {"rows", "seed", "wall_s"}),
        ("p2prl bench engine", EngineRow, {"rows", "seed", "wall_s"}),
        ("p2prl bench swap", SwapReport, {"met", "seed", "wall_s"}),
    ],
)
def test_documented_keys_of_benchmarks_with_one_kind_of_row(command: str, row: Any, beside: set[str]) -> None:
    assert {field.name for field in fields(row)} | beside <= json_keys(command)


def test_every_document_is_described_and_compared() -> None:
    compared = {name for path in (ROOT / "tests").rglob("*.py") for name in COMPARED.findall(path.read_text())}
    with_json = {
        name for name, command in commands().items() if any("--json" in option.opts for option in command.params)
    }
    assert {name for name in with_json if "JSON keys" not in section(name)} == set()
    assert {name for name in with_json - compared if not name.startswith(LONG)} == set()


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
