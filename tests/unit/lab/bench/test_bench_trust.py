"""The trust benchmark: a real learner tells forged groups from honest ones, rows are what they say, and it resumes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from p2prl.errors import ConfigError
from p2prl.sim.machines import identity_of
from p2prl_lab.bench.trust import benchmark, replay_power
from p2prl_lab.bench.trust.attack_run import AttackRun, RunSize
from p2prl_lab.bench.trust.attacks import attack_row, groups_of
from p2prl_lab.bench.trust.benchmark import TABLES, TrustConfig, run_trust
from p2prl_lab.bench.trust.charts import draw_charts
from p2prl_lab.bench.trust.flood_rows import table_rows
from p2prl_lab.bench.trust.floods import FloodPlan, flood_row
from p2prl_lab.bench.trust.forged_groups import ATTACKS, INVENTED_NATS, Attack
from p2prl_lab.bench.trust.model_groups import model_rows
from p2prl_lab.bench.trust.report import as_markdown, attack_table
from p2prl_lab.bench.trust.roc import CLASSES, LAUNDERED, roc_points
from tests.command_doc import section
from tests.json_shapes import breaches

HONEST_WORK = {"honest", "forge rewards", "withhold 7 of 8 slots", "duplicates"}
"""Attacks that deliver valid groups too, or nothing else: what they choose or claim is answered elsewhere."""

NEAR_THE_POLICY = {"int8 weights", "policy of 10 updates before", "policy of 100 updates before"}
"""Weights so close to the version's that short groups lie within what machines of one class may differ by."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def run() -> AttackRun:
    return AttackRun(RunSize(dtype="float32", tokens=40))


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_in_float32_nothing_forged_is_credited(name: str, run: AttackRun) -> None:
    row = attack_row(run, name, 4)
    assert row.delivered == 4
    assert 0.0 <= row.worst_margin < 0.02
    assert row.forged_credited == 0
    if name in HONEST_WORK:
        assert row.credited == (2 if name == "duplicates" else 4)
        assert row.trained_on == row.credited
    elif name not in NEAR_THE_POLICY:
        assert row.credited == row.trained_on == 0
    assert sum(row.reasons.values()) == row.delivered - row.credited


def test_a_forged_group_that_is_credited_would_show(run: AttackRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a judge that looks at nothing, the rows count what was forged, and what was trained on."""
    honest = attack_row(run, "honest", 4)
    assert honest.credited == 4
    monkeypatch.setattr("p2prl.models.replay.group_replay.judge_group", _look_away)
    monkeypatch.setattr("p2prl.learner.intake.replaying.is_worthwhile", lambda _: False)
    row = attack_row(run, "invented token", 4)
    assert row.credited == row.forged_credited == row.trained_on == 4
    assert 1.0 < row.worst_margin < 2.0


def _look_away(*_: object) -> object:
    from p2prl.models.replay_statistics.judge import Judgement

    return Judgement("", 0, 0.0, 0.0)


def test_an_invented_token_lies_where_it_says(run: AttackRun) -> None:
    attack_row(run, "honest", 1)  # publishes the version
    honest = dict(run.honest(3))
    for key, group in ATTACKS["invented token"].forge(run, 3):
        requests = run.assign(key, 0).requests
        ids = [tuple(np.frombuffer(each.tokens, dtype="<u4").tolist()) for each in group.completions]
        margins = [margin for each in run.reference.replay(requests, ids) for margin in each.margins if margin > 1e-4]
        assert len(margins) == 1
        assert INVENTED_NATS < margins[0] < 2.0
        changed = [a != b for a, b in zip(group.completions, honest[key].completions, strict=True)]
        assert sum(changed) == 1


def test_groups_of_an_attack_are_bounded() -> None:
    attack = Attack(forge=ATTACKS["honest"].forge)
    assert groups_of(attack, 512, groups=20, cell_tokens=0) == 20
    assert groups_of(attack, 512, groups=20, cell_tokens=5_120) == 10
    assert groups_of(replace(attack, samples=1), 512, groups=20, cell_tokens=8 * 5_120) == 10
    assert groups_of(attack, 16_384, groups=20, cell_tokens=10) == 1
    assert groups_of(replace(attack, least_groups=30), 512, groups=20, cell_tokens=10) == 30


def test_curves_rise_to_all_and_the_product_stands_on_each() -> None:
    points = list(roc_points(30, sizes=(40,)))
    assert {(point.engines, point.cheat) for point in points} == {(e, c) for e in CLASSES for c in LAUNDERED}
    for engines in CLASSES:
        for cheat in LAUNDERED:
            curve = [point for point in points if (point.engines, point.cheat) == (engines, cheat)]
            assert [point.found for point in curve] == sorted(point.found for point in curve)
            assert [point.false_rejects for point in curve] == sorted(point.false_rejects for point in curve)
            (product,) = [point for point in curve if point.threshold == 1.0]
            assert product.false_rejects == 0.0
    found = {(point.engines, point.cheat): point.found for point in points if point.threshold == 1.0}
    assert found["float32, two machines", "int4 weights"] > 0.9
    assert found["bfloat16, one engine", "invented token"] == 1.0


def test_share_of_a_flood_is_a_rate() -> None:
    """Updates every 10 s of 4 groups, and with the flood every 20 s, one group of them the flood's."""
    plan = FloodPlan(keys=1, begins_s=100.0, lasts_s=100.0, recovery_s=0.0, after_s=100.0)
    cheat, peer = identity_of("flood 0/0").public_key, bytes(32)
    quiet = [(float(at), peer) for at in range(0, 300, 10) for _ in range(4)]
    during = [(at, each) for at in range(103, 200, 20) for each in (peer, peer, peer, cheat)]
    after = [(at, peer) for at in range(205, 300, 10) for _ in range(4)]
    row = flood_row(plan, "fabricated", quiet, [*quiet[:40], *during, *after])
    assert row.honest_share_during == pytest.approx(3 / 8)
    assert row.honest_share_after == pytest.approx(1.0)
    assert row.newcomer_share_during == pytest.approx(1 / 4)


def test_tables_keep_a_place_for_a_newcomer() -> None:
    rows = {name: make() for name, make in table_rows(0) if name != "links"}
    assert all(row.newcomer_after_s is not None and row.newcomer_after_s <= 60.0 for row in rows.values())


def test_benchmark_resumes_and_its_rows_are_documented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_power, "_POOL", 1 << 10)
    monkeypatch.setattr(benchmark, "POLICIES", ("usual",))
    monkeypatch.setattr(benchmark, "model_rows", partial(model_rows, temperatures=(1.0,)))
    config = TrustConfig(
        parts=("attacks", "false_rejects"), dtypes=("bfloat16",), tokens=(8,), groups=3, attack_groups=1,
        attacks=("honest", "fabricate"),
    )  # fmt: skip
    rows = run_trust(config, tmp_path, on_progress=lambda *_: None)
    assert set(rows) == set(TABLES)
    assert [(row["attack"], row["temperature"], row["credited"]) for row in rows["attacks"]] == [
        ("honest", 1.0, 1), ("fabricate", 1.0, 0), ("honest", 0.6, 1),
    ]  # fmt: skip
    document = json.loads(json.dumps({**rows, "seed": 0, "wall_s": 1.0}))
    assert breaches(document, "p2prl bench trust") == []
    documented = section("p2prl bench trust")
    for table in ("attacks", "false_rejects", "power", "roc"):
        assert rows[table]
        assert all(f"`{key}`" in documented for key in rows[table][0]), table
    stored = (tmp_path / "results.jsonl").read_text()
    monkeypatch.setattr(benchmark, "attack_row", None)
    monkeypatch.setattr(benchmark, "cells", None)
    again = run_trust(config, tmp_path, on_progress=lambda *_: None)
    assert msgspec.json.encode(again) == msgspec.json.encode(rows)
    assert (tmp_path / "results.jsonl").read_text() == stored
    assert as_markdown(rows).count("\n| ") > 10
    first, second = ([path.read_bytes() for path in draw_charts(rows, tmp_path / name)] for name in ("one", "two"))
    assert len(first) == 2
    assert first == second
    assert json.loads(stored.splitlines()[0])["setting"]["part"] == "attacks"


def test_forged_groups_stand_out_in_the_table() -> None:
    row = {
        "attack": "any", "dtype": "float32", "tokens": 8, "temperature": 1.0, "delivered": 4, "credited": 2,
        "forged_credited": 1, "worst_margin": 0.75, "trained_on": 0, "reasons": {},
    }  # fmt: skip
    assert "| any | float32 | 1 | 2/4 (1: 0.75) |" in attack_table([row])


@pytest.mark.parametrize(
    "change", [{"parts": ("none",)}, {"tokens": (9,)}, {"dtypes": ()}, {"attacks": ("x",)}, {"groups": 0}]
)
def test_what_cannot_be_measured_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        replace(TrustConfig(), **change)  # type: ignore[arg-type]
