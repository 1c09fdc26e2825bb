"""Fleets: what a file may say, what is derived from it, and the arithmetic worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from p2prl.errors import ConfigError, MachineError
from p2prl.planning.card_speeds import CARDS, decode_step_s, slots_that_fit
from p2prl.planning.fleet import Fleet, MachineRow, PlannedLearner, PlannedRun, measured_speed, read_fleet
from p2prl.planning.fleet_advice import advise
from p2prl.planning.fleet_capacity import capacity_of_fleet
from p2prl.planning.measured_figures import MEASURED, PATCH_RATIOS, patch_ratio, training_share
from p2prl.planning.model_shapes import MODELS, model_named

HERE = Path()
FLEET = """
[run]
model = "0.5b"
[learner]
update_s = 10
replay_s = 0.5
[[machines]]
name = "lab"
count = 3
tokens_per_s = 1000
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_the_arithmetic_of_given_figures(tmp_path: Path) -> None:
    found = capacity_of_fleet(read_fleet(written(tmp_path, FLEET)), tmp_path)
    assert (found.update.training_s, found.update.replay_s) == (10.0, 8.0)
    assert found.update.copying_s == pytest.approx(0.09), "measured at this size"
    assert found.demand.groups_per_s == pytest.approx(16 / 18.09, rel=1e-4)
    (row,) = found.rows
    assert row.machine is not None
    assert row.machine.group_s == 4 * 8 * 1024 / 1000
    assert row.groups_per_s == pytest.approx(3 * 1000 / (8 * 1024))
    # 1.06 of the bound: three copies over .8 of 100 Mbit/s and three times 10; encoding and decoding as measured.
    sent_s = 1.06 * 3 * found.patch_bytes / 13e6
    assert row.machine.version_delay_s == pytest.approx(1.7 + 988_065_536 / 1058e6 + sent_s, rel=1e-3)
    assert found.patch_bytes == pytest.approx(988_065_536 / 223.2, rel=1e-4)


def test_a_learners_card_predicts_what_was_not_measured() -> None:
    """A replay is a forward pass, a third of training, so the replays of an update take a third of it."""
    machines = (MachineRow(name="lab", tokens_per_s=1000.0),)
    predicted = capacity_of_fleet(Fleet(learner=PlannedLearner(card="h100"), machines=machines), HERE).update
    assert predicted.training_s > 0.0
    assert predicted.replay_s == pytest.approx(predicted.training_s / 3)
    changes: tuple[dict[str, Any], ...] = ({"update_s": 7.0}, {"replay_s": 0.25})
    for given in changes:
        learner = PlannedLearner(card="h100", **given)
        found = capacity_of_fleet(Fleet(learner=learner, machines=machines), HERE).update
        assert found.training_s == given.get("update_s", predicted.training_s)
        groups = PlannedRun().groups_per_update
        assert found.replay_s == groups * given["replay_s"] if "replay_s" in given else predicted.replay_s


@pytest.mark.parametrize(("replay_s", "bottleneck"), [(0.5, "training"), (0.625, "training"), (0.626, "replay")])
def test_replays_are_the_bottleneck_when_they_take_more_than_training(replay_s: float, bottleneck: str) -> None:
    learner = PlannedLearner(update_s=10.0, replay_s=replay_s)  # sixteen of them an update
    fleet = Fleet(learner=learner, machines=(MachineRow(name="lab", count=100, tokens_per_s=5000.0),))
    assert fleet.run.groups_per_update == 16
    assert advise(fleet, partial(capacity_of_fleet, folder=HERE)).bottleneck == bottleneck


def test_replays_on_cards_of_their_own_take_no_time_of_training() -> None:
    machines = (MachineRow(name="lab", count=100, tokens_per_s=5000.0),)
    learner = PlannedLearner(update_s=10.0, replay_s=0.5)  # sixteen groups: 8 s of replays an update on one card
    fleet = Fleet(learner=learner, machines=machines, run=PlannedRun(publish_every=8))
    beside = capacity_of_fleet(fleet, HERE)
    assert beside.demand.replay_per_s == float("inf")
    for replayers in (1, 2):
        found = capacity_of_fleet(replace(fleet, learner=replace(learner, replayers=replayers)), HERE)
        assert found.update.total_s == pytest.approx(beside.update.total_s - 8.0)
        assert found.demand.replay_per_s == pytest.approx(replayers / 0.5)
        assert found.interval_s == pytest.approx(10.0, rel=0.02), "each replays faster than training takes"
    slow = replace(learner, replay_s=2.0, replayers=2)  # 32 s on one card, 16 on two
    assert capacity_of_fleet(replace(fleet, learner=slow), HERE).interval_s == pytest.approx(16.0, rel=0.02)
    unmeasured = replace(learner, replay_s=0.0, replayers=2)
    assert capacity_of_fleet(replace(fleet, learner=unmeasured), HERE).demand.replay_per_s == float("inf")


@pytest.mark.parametrize(
    ("replay_s", "replayers", "advised"),
    [(0.05, 0, None), (0.5, 0, 1), (2.0, 0, 4), (2.0, 1, 4), (2.0, 4, None), (60.0, 0, 8)],
)
def test_as_many_replayers_are_advised_as_training_can_use(
    replay_s: float, replayers: int, advised: int | None
) -> None:
    """An update trains for 10 s and has sixteen groups; eight cards are a host's."""
    learner = PlannedLearner(update_s=10.0, replay_s=replay_s, replayers=replayers)
    machines = (MachineRow(name="lab", count=100, tokens_per_s=5000.0),)
    fleet = Fleet(learner=learner, machines=machines, run=PlannedRun(publish_every=8))
    arithmetic = partial(capacity_of_fleet, folder=HERE)
    more = advise(fleet, arithmetic).replayers
    if advised is None:
        assert more is None
        return
    assert more is not None
    assert more.count == advised
    with_them = arithmetic(replace(fleet, learner=replace(learner, replayers=more.count))).interval_s
    assert more.interval_s == with_them < 0.9 * more.before_s
    assert more.before_s == arithmetic(fleet).interval_s


def test_twelve_home_cards_of_12_gb_hold_no_7b_and_all_of_a_smaller_model() -> None:
    fleet = Fleet(learner=PlannedLearner(card="h100"), machines=(MachineRow(name="home", count=12, card="rtx3060"),))
    (row,) = capacity_of_fleet(fleet, HERE).rows
    assert row.machine is None
    assert "19.8 GB needed" in row.source, "2 bytes of 7.6 billion, and .3 of that"
    assert capacity_of_fleet(fleet, HERE).capacity.utilization == 0.0
    small = capacity_of_fleet(replace(fleet, run=PlannedRun(model="3b")), HERE)
    assert len(small.machines) == 12
    assert small.capacity.utilization > 0.5


def test_a_card_that_cannot_train_the_model_is_named() -> None:
    fleet = Fleet(learner=PlannedLearner(card="rtx3060"), machines=(MachineRow(name="a", card="h100"),))
    with pytest.raises(MachineError, match=r"training Qwen2.5 7B takes .* RTX 3060 has 12 GB"):
        capacity_of_fleet(fleet, HERE)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('name = "lab"', 'nmae = "lab"', "unknown key 'nmae'"),
        ("tokens_per_s = 1000", "", "no speed"),
        ("tokens_per_s = 1000", 'tokens_per_s = 1000\ncard = "h100"', "two speeds: card and tokens_per_s"),
        ("tokens_per_s = 1000", "tokens_per_s = nan", "tokens_per_s is nan"),
        ("tokens_per_s = 1000", 'card = "rtx9999"', "no card is known as 'rtx9999'"),
        ("tokens_per_s = 1000", 'measured = "none.json"', "cannot read .*none.json"),
        ("count = 3", "count = 0", "machine 'lab': count is 0"),
        (
            "count = 3",
            "count = 4998\ncard = 'h100'\n[[machines]]\nname = 'b'\ncount = 3",
            "count of all machines is",
        ),
        ("count = 3", "share_of_time = 1.5", "share_of_time is 1.5"),
        ('"0.5b"', '"6b"', "no model is known as '6b'"),
        ('"0.5b"', '"0.5b"\nstaleness = 0', "staleness is 0"),
        ('"0.5b"', '"0.5b"\nstaleness = 4\npublish_every = 6', "publish_every is 6"),
        ("update_s = 10", "", "neither a card nor update_s"),
        ("[learner]", "", "unknown key|learner"),
        ("update_s = 10", "update_s = 10 s", "is not TOML"),
    ],
)
def test_a_wrong_file_is_told_by_what_is_wrong_in_it(tmp_path: Path, old: str, new: str, told: str) -> None:
    path = written(tmp_path, FLEET.replace(old, new))
    with pytest.raises(ConfigError, match=told) as caught:
        capacity_of_fleet(read_fleet(path), tmp_path)
    assert caught.value.remedy


def bench(*rows: tuple[float, float]) -> str:
    return json.dumps({"speed": [{"model": "x", "parameters": size, "tokens_per_s": speed} for size, speed in rows]})


def test_a_measured_speed_is_that_of_the_nearest_size(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(bench((29e6, 9000.0), (494_032_768, 600.0)))
    speed, source = measured_speed(path, MODELS["1.5b"])
    assert speed == pytest.approx(600.0 * 494_032_768 / 1_543_714_304)
    assert "machine.json: 600 tokens/s" in source


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"speed": [{}]}',
        '{"speed": []}',
        bench((0.0, 5.0)),
        bench((1e9, float("nan"))),
        "[" * 100_000,
        "\x00",
    ],
)
def test_what_is_no_measurement_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "machine.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"machine\.json"):
        measured_speed(path, MODELS["7b"])
    path.write_bytes(b" " * 1_000_001)
    with pytest.raises(ConfigError, match="1,000,000 bytes"):
        measured_speed(path, MODELS["7b"])


def test_shapes_have_the_parameters_they_are_said_to_have() -> None:
    """Counted from the widths: Qwen2.5 has biases of queries, keys and values, and up to 3B one embedding."""
    for name, model in MODELS.items():
        shape, kv = model.shape, model.kv_width
        qwen, embeddings = name != "8b", 1 if shape.hidden <= 2048 else 2
        attention = 2 * shape.hidden * shape.query + 2 * shape.hidden * kv + qwen * (shape.query + 2 * kv)
        layer = attention + 3 * shape.hidden * shape.intermediate + 2 * shape.hidden
        total = shape.layers * layer + shape.hidden + embeddings * shape.vocabulary * shape.hidden
        assert total == model.parameters, name


@pytest.mark.parametrize(("batch", "name"), [(8, "decode_8_ms"), (64, "decode_64_ms"), (256, "decode_256_ms")])
def test_predicted_decoding_is_within_a_fifth_of_the_measured(batch: int, name: str) -> None:
    """32 tokens of the prompt, and half of 64, at half a billion parameters on an H200."""
    predicted = 1000 * decode_step_s(CARDS["h200"], MODELS["0.5b"], batch=batch, context=64)
    assert predicted == pytest.approx(MEASURED[name].value, rel=0.2)


def test_training_is_predicted_as_measured_where_it_was() -> None:
    card = CARDS["h100"]
    for name, seconds in (("0.5b", 1.2), ("1.5b", 3.1), ("7b", 5.5)):
        model = MODELS[name]
        share = training_share(model.parameters, card.peak_flops)
        assert 6 * model.parameters * 32 * 1024 / (card.peak_flops * share) == pytest.approx(seconds)
    assert training_share(32e9, card.peak_flops) == training_share(7_615_616_512, card.peak_flops)


def test_slots_are_those_whose_keys_and_values_fit() -> None:
    """A 4090 has 24 GB, of which .9 are used; 7B leaves 6.4 GB for 8 × 1,280 tokens of 57,344 bytes a group."""
    assert slots_that_fit(CARDS["rtx4090"], MODELS["7b"], row_tokens=1280, group_size=8) == 8
    assert slots_that_fit(CARDS["rtx3060"], MODELS["7b"], row_tokens=1280, group_size=8) == 0
    assert slots_that_fit(CARDS["h100"], MODELS["7b"], row_tokens=1280, group_size=8) == 8
    assert slots_that_fit(CARDS["rtx4090"], MODELS["7b"], row_tokens=30_000, group_size=64) == 1


def test_patches_between_measured_spans_lie_on_a_line() -> None:
    assert {span: patch_ratio(span) for span in PATCH_RATIOS} == pytest.approx(PATCH_RATIOS)
    assert patch_ratio(4) == pytest.approx((135.1 * 53.3) ** 0.5)
    assert patch_ratio(500) == 13.1


def test_names_are_taken_in_any_case() -> None:
    assert model_named("7B") is MODELS["7b"]
