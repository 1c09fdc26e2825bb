"""`--json`: each command prints one object with the keys that docs/cli.md lists, and the shape of docs/json.md."""

from __future__ import annotations

import ast
import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from p2prl.bench.engine.benchmark import EngineRow
from p2prl.bench.engine_pairs.benchmark import PairResult
from p2prl.bench.machine.benchmark import FitRow, SpeedRow
from p2prl.bench.publish.benchmark import PublishReport
from p2prl.bench.ranks.benchmark import RanksRow
from p2prl.bench.step.benchmark import StepRow
from p2prl.cli.commands import certificate as certificate_make
from p2prl.cli.commands.seed_worker import seeding_document
from p2prl.cli.commands.sim import simulation_document
from p2prl.cli.commands.validate_worker import audit_document
from p2prl.cli.views.volunteer_view import progress_document
from p2prl.client.progress import Progress
from p2prl.client.seeder import Seeding
from p2prl.clock import SystemClock
from p2prl.config.new_run import RunFolder, open_run
from p2prl.controls.energy import EnergyAccount, EnergyUse
from p2prl.controls.owner_values import Price
from p2prl.errors import IntegrityError
from p2prl.learner.journal.journal import Journal
from p2prl.learner.signing_sender import SigningSender
from p2prl.scoreboard.display_names import display_name
from p2prl.sim.swarm_config import SwarmConfig, SwarmResult
from p2prl.validator.service import Audit
from p2prl_lab.bench.comparison.report import CaseRow
from p2prl_lab.bench.draw_cost.benchmark import DrawCost
from p2prl_lab.bench.hot_swap.benchmark import SwapReport
from p2prl_lab.bench.pacing.benchmark import PacingRow
from p2prl_lab.bench.plan.activation import ActivationRow
from p2prl_lab.bench.plan.benchmark import PlanRow
from p2prl_lab.bench.plan.host_plans import HostPlanRow
from p2prl_lab.bench.replay.outrun_learner import OutrunReport
from p2prl_lab.bench.replay.replay_cost import ReplayCost
from p2prl_lab.bench.staleness.summary import Row
from p2prl_lab.bench.staleness.sweep import Choice
from p2prl_lab.commands import recipe_comparison
from p2prl_lab.plan_live import LiveRow
from p2prl_lab.swarm_price import PriceRow
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, identity, receipt
from tests.command_doc import json_keys, section
from tests.json_shapes import breaches, promised, shape_of
from tests.unit.cli.invocation import commands, invoke, json_of
from tests.unit.cli.views.test_worker_views import BUSY

COMMANDS, LABORATORY = (Path(str(module.__file__)).parent for module in (certificate_make, recipe_comparison))

BENCHMARKS = "p2prl bench "
"""docs/cli.md names the keys of their rows, not always those of the whole document."""


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
    evaluated = json_of("eval", run, "--prompts", 8, "--k", 2, "--device", "cpu", "--save", tmp_path / "answers.jsonl")
    assert set(evaluated) == json_keys("p2prl eval")
    check_saved(tmp_path / "answers.jsonl", evaluated["tasks"])
    run = shutil.copytree(run, tmp_path / "run")
    sign_ledger(open_run(run))
    assert set(json_of("ledger", "dump", run, tmp_path / "ledger")) == json_keys("p2prl ledger dump")
    for source in (run, tmp_path / "ledger"):
        assert set(json_of("ledger", "verify", source)) == json_keys("p2prl ledger verify")
    assert set(json_of("board", run)) == json_keys("p2prl board")


def check_saved(path: Path, reports: dict[str, Any]) -> None:
    """The saved completions give the report's figures."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for task, report in reports.items():
        mine = [row for row in rows if row["task"] == task]
        greedy = [row for row in mine if row["sample"] is None]
        assert {row["sample"] for row in mine} == {None, 0, 1}
        assert len({row["prompt"] for row in greedy}) == len(greedy) == len(mine) / 3 == report["prompts"]
        assert sum(row["passes"] for row in greedy) / len(greedy) == pytest.approx(report["greedy_pass"]["rate"])
        assert sum(row["tokens"] for row in mine) / len(mine) == pytest.approx(report["completion_tokens_mean"])
        assert {row["finished"] or row["tokens"] > 0 for row in mine} == {True}
        assert any(row["completion"] for row in mine)
    assert {row["task"] for row in rows} == set(reports)


def sign_ledger(folder: RunFolder) -> None:
    """What a learner does when it starts: an empty ledger, too, has a signed head."""
    journal = Journal(folder.paths.journal)
    SigningSender(folder.identity, folder.run, journal, SystemClock()).sign_ledger_head(step=0, finished=False)
    journal.close()


def test_documented_keys_of_workers() -> None:
    common = {"role": "", "run": "", "peer": ""}
    idle = Progress("", 0, 0, {}, {}, {}, 0, 0.0, 0.0, (-1, 0, 0), 0, 0, 0, 0, 0)
    engine = {"engine": {"engine": "", "version": "", "dtype": "", "device": "", "reason": ""}}
    measured = {"energy": EnergyAccount().document(EnergyUse(3.6e6, 90.0, ("card",)), 0, Price(0.3, "EUR"))}
    documents = [
        ("p2prl join", progress_document(idle) | engine | measured),
        ("p2prl join", progress_document(BUSY) | engine | measured),
        ("p2prl validate", audit_document(Audit(0, 0, 0, 0, 0, 0))),
        ("p2prl seed", seeding_document(Seeding(state="", version=0, chunks_held=0, chunks=0))),
    ]
    for name, document in documents:
        printed = json.loads(json.dumps({**common, **document}))
        assert set(printed) == json_keys(name)
        assert breaches(printed, name) == []


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


@pytest.fixture
def certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A certificate's file, and the name of the contributor."""
    writer, volunteer = LedgerWriter(), identity("volunteer")
    writer.receipts(0, receipt(0, volunteer))
    monkeypatch.setattr(certificate_make, "ledger_of", lambda *_: nullcontext(MemorySource(writer)))
    monkeypatch.setattr(certificate_make, "await_current_ledger", lambda _: None)
    monkeypatch.setattr(certificate_make, "_signer", lambda *_: (volunteer, volunteer.peer_id))
    made = json_of("certificate", "LINK", "--out", tmp_path / "certificate.png")
    assert set(made) == json_keys("p2prl certificate")
    return Path(made["file"]), display_name(volunteer.public_key)


def test_the_check_of_a_certificate_says_what_it_checked(certified: tuple[Path, str]) -> None:
    file, name = certified
    checked = json_of("certificate", "LINK", "--check", file)
    assert set(checked) == json_keys("p2prl certificate")
    assert (checked["verified_groups"], checked["verified_tokens"], checked["handle"]) == (1, 100, name)
    assert checked["valid"] is True
    assert "1 verified group of chain-of-sums" in invoke("certificate", "LINK", "--check", file).output


def test_a_certificate_that_was_painted_over_is_refused_with_what_was_signed(
    tmp_path: Path, certified: tuple[Path, str]
) -> None:
    file, name = certified
    with Image.open(file) as image:
        info = PngInfo()
        info.add_itxt("p2prl certificate", image.info["p2prl certificate"])
        image.putpixel((0, 0), (0, 0, 0))
        image.save(tmp_path / "forged.png", pnginfo=info)
    refused = invoke("certificate", "LINK", "--check", tmp_path / "forged.png").exception
    assert isinstance(refused, IntegrityError)
    assert f"{name} (" in str(refused)
    assert "has 1 verified group of chain-of-sums, 100 verified tokens" in str(refused)


@pytest.mark.parametrize(
    ("command", "row", "beside"),
    [
        ("p2prl bench draw", DrawCost, {"rows", "device", "seed", "wall_s"}),
        ("p2prl bench engine", EngineRow, {"rows", "device", "seed", "wall_s"}),
        ("p2prl bench swap", SwapReport, {"met", "device", "seed", "wall_s"}),
        ("p2prl bench publish", PublishReport, {"met", "device", "seed", "wall_s"}),
    ],
)
def test_documented_keys_of_benchmarks_with_one_kind_of_row(command: str, row: Any, beside: set[str]) -> None:
    assert {field.name for field in fields(row)} | beside <= json_keys(command)


@pytest.mark.parametrize(
    ("command", "path", "row"),
    [
        ("p2prl bench draw", ".rows[]", DrawCost),
        ("p2prl bench swap", "", SwapReport),
        ("p2prl bench publish", "", PublishReport),
        ("p2prl bench replay", ".rows[]", ReplayCost),
        ("p2prl bench pacing", ".rows[]", PacingRow),
        ("p2prl bench plan", ".fleets[]", PlanRow),
        ("p2prl bench plan", ".activation[]", ActivationRow),
        ("p2prl bench plan", ".plans[]", HostPlanRow),
        ("p2prl bench step", ".rows[]", StepRow),
        ("p2prl bench swarm", ".rows[]", PriceRow),
        ("p2prl bench ranks", ".rows[]", RanksRow),
        ("p2prl bench machine", ".speed[]", SpeedRow),
        ("p2prl bench machine", ".fits[]", FitRow),
        ("p2prl bench rewards", ".results[]", CaseRow),
        ("p2prl bench ppo", ".results[]", CaseRow),
        ("p2prl bench staleness", ".results[]", Row),
        ("p2prl bench staleness", ".sweep.choices[]", Choice),
    ],
)
def test_rows_of_benchmarks_have_the_promised_shape(command: str, path: str, row: Any) -> None:
    """Benchmarks take minutes: their rows are compared by the annotations that they are made from."""
    assert shape_of(row, path).items() <= promised()[command].items()
    below = {other for other in promised()[command] if other.startswith(f"{path}.") and path}
    beside = {f"{path}.met"} if command == "p2prl bench replay" else set()
    assert below - set(shape_of(row, path)) == beside


@pytest.mark.parametrize(
    ("command", "path", "rows"),
    [
        ("p2prl bench engine", ".rows[]", (EngineRow, PairResult)),
        ("p2prl bench replay", ".learner", (OutrunReport,)),
        ("p2prl bench plan", ".live", (LiveRow,)),
    ],
)
def test_keys_that_only_some_documents_have_are_optional(command: str, path: str, rows: tuple[Any, ...]) -> None:
    shapes = [shape_of(row, path) for row in rows]
    for name in set().union(*shapes) - {path}:
        promise = promised()[command][name]
        assert promise.types == next(shape[name].types for shape in shapes if name in shape)
        assert promise.optional == (len(rows) == 1 or not all(name in shape for shape in shapes))


@pytest.mark.parametrize(
    ("command", "modules"),
    [
        ("p2prl bench draw", ["bench_draw"]),
        ("p2prl bench engine", ["bench_engine"]),
        ("p2prl bench machine", ["bench_machine"]),
        ("p2prl bench pacing", ["bench_pacing"]),
        ("p2prl bench plan", ["bench_plan"]),
        ("p2prl bench ppo", ["recipe_comparison"]),
        ("p2prl bench replay", ["bench_replay"]),
        ("p2prl bench rewards", ["recipe_comparison"]),
        ("p2prl bench ranks", ["bench_ranks"]),
        ("p2prl bench step", ["bench_step"]),
        ("p2prl bench swarm", ["bench_swarm"]),
    ],
)
def test_documents_of_benchmarks_have_the_promised_keys(command: str, modules: list[str]) -> None:
    """Read from what the program passes to `emit`, without the minutes that a benchmark takes."""
    files = [path for folder in (COMMANDS, LABORATORY) for path in folder.glob("*.py") if path.stem in modules]
    assert len(files) == len(modules)
    emitted = {key for file in files for key in keys_emitted_by(file)}
    assert emitted == {re.split(r"[.\[]", path)[1] for path in promised()[command]}


def keys_emitted_by(file: Path) -> set[str]:
    """The keys of the dictionaries that the calls of `emit` in a command get."""
    calls = [
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "emit"
    ]
    assert len(calls) == (2 if file.stem == "bench_engine" else 1)  # with --pairs it measures something else
    keys: list[ast.expr | None] = []
    for call in calls:
        (document,) = call.args
        assert isinstance(document, ast.Dict)
        keys += document.keys
    return {key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def test_every_document_has_a_promised_shape() -> None:
    with_json = {
        name for name, command in commands().items() if any("--json" in option.opts for option in command.params)
    }
    assert set(promised()) == with_json | {"p2prl join --events"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"entries": "3"}, ".entries is '3', not integer"),
        ({"entries": True}, ".entries is True, not integer"),
        ({"signed": 1}, ".signed is 1, not boolean"),
        ({"more": 1}, ".more is not promised"),
        ({"file": None}, ".file is None, not string"),
    ],
)
def test_a_changed_document_is_told(change: dict[str, Any], told: str) -> None:
    document = {"entries": 3, "signed": True, "file": "a"}
    assert breaches(document, "p2prl ledger dump") == []
    assert breaches({**document, **change}, "p2prl ledger dump") == [told]
    del document["file"]
    assert breaches(document, "p2prl ledger dump") == [".file is missing"]


def test_a_change_deep_inside_a_document_is_told() -> None:
    limits = {"share": {"value": "off", "origin": "default"}}
    document: dict[str, Any] = {"file": "a", "limits": limits}
    assert breaches(document, "p2prl config show") == []
    limits["share"] = {"value": "off"}
    assert breaches(document, "p2prl config show") == [".limits.*.origin is missing"]


def test_documents_are_described_with_the_keys_of_their_shapes() -> None:
    for name, shape in promised().items():
        if name.endswith("--events") or name.startswith(BENCHMARKS):
            continue
        keys = {path.removeprefix(".") for path in shape if re.fullmatch(r"\.\w+", path)}
        assert keys <= json_keys(name), name


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
