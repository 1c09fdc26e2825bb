"""TOML tables into dataclasses: errors name the key and a remedy."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.algorithms.reward_spec import parse_reward
from p2prl.config.new_run import RunSettings
from p2prl.config.presets import PRESETS, preset_by_name
from p2prl.config.toml_tables import MOST_FILE_BYTES, parse, read_toml, with_changes
from p2prl.errors import ConfigError
from p2prl.protocol.manifests import Sampling


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    rate: float = 0.5
    path: Path = Path()


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    name: str
    count: int = 1
    flag: bool = False
    maybe: int | None = None
    mode: Literal["fast", "slow"] = "fast"
    items: tuple[str, ...] = ()
    inner: Inner = field(default_factory=Inner)
    options: dict[str, object] = field(default_factory=dict)
    color: str = field(default="", metadata={"formerly": "colour"})


def test_complete_table_is_parsed() -> None:
    made = parse(
        Outer,
        {
            "name": "a",
            "count": 3,
            "flag": True,
            "maybe": 4,
            "mode": "slow",
            "items": ["x", "y"],
            "inner": {"rate": 2, "path": "/tmp/p"},
            "options": {"k": 1},
        },
        where="f",
    )
    assert made == Outer(
        name="a",
        count=3,
        flag=True,
        maybe=4,
        mode="slow",
        items=("x", "y"),
        inner=Inner(rate=2.0, path=Path("/tmp/p")),
        options={"k": 1},
    )
    assert isinstance(made.inner.rate, float)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "'name' is missing", "name ="),
    ({"name": "a", "cuont": 1}, "unknown key 'cuont'", "Did you mean 'count'?"),
    ({"name": "a", "zzz": 1}, "unknown key 'zzz'", "Known keys: name, count"),
    ({"name": "a", "inner": {"rte": 1}}, "f.inner: unknown key 'rte'", "Did you mean 'rate'?"),
    ({"name": 1}, "f.name must be a str, not 1", "Fix"),
    ({"name": "a", "count": 1.5}, "f.count must be a int", "Fix"),
    ({"name": "a", "count": True}, "f.count must be a int", "Fix"),
    ({"name": "a", "flag": 1}, "f.flag must be a bool", "Fix"),
    ({"name": "a", "mode": "middling"}, "f.mode must be 'fast' or 'slow'", "Fix"),
    ({"name": "a", "items": "x"}, "f.items must be a list", "Fix"),
    ({"name": "a", "items": [1]}, "f.items must be a str", "Fix"),
    ({"name": "a", "inner": 3}, "f.inner must be a table", "Fix"),
    ({"name": "a", "inner": {"rate": "1"}}, "f.inner.rate must be a float", "Fix"),
    ({"name": "a", "options": 5}, "f.options must be a table", "Fix"),
    ({"name": "a", "colour": 5}, "f.colour must be a str, not 5", "Fix"),
    ({"name": "a", "colour": "x", "color": "x"}, "f: 'color' is set twice, once as 'colour'", "Keep 'color'"),
]


@pytest.mark.parametrize(("table", "message", "remedy"), WRONG)
def test_errors_name_the_key(table: dict[str, Any], message: str, remedy: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Outer, table, where="f")
    assert message in str(caught.value)
    assert remedy in caught.value.remedy


def test_a_key_of_an_earlier_release_is_read() -> None:
    assert parse(Outer, {"name": "a", "colour": "red"}, where="f") == Outer(name="a", color="red")
    old = parse(RunSettings, {"learner": {"optimiser": {"learning_rate": 0.25}}}, where="run.toml")
    assert old == parse(RunSettings, {"learner": {"optimizer": {"learning_rate": 0.25}}}, where="run.toml")
    assert old.learner.optimizer.learning_rate == 0.25


TOML = st.recursive(
    st.one_of(st.integers(), st.text(), st.booleans(), st.floats()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=5,
)
KEYS = st.sampled_from(
    ["learner", "loss", "network", "device", "threads", "optimizer", "optimiser", "updates", "options"]
)


@given(st.dictionaries(KEYS, st.one_of(TOML, st.dictionaries(KEYS, TOML))))
def test_any_table_is_settings_or_a_config_error(table: dict[str, Any]) -> None:
    with suppress(ConfigError):  # and no other error
        assert isinstance(parse(RunSettings, table, where="run.toml"), RunSettings)


@pytest.mark.parametrize("text", [b"a = \n", b"\xff\xfe", b"[a\n"])
def test_invalid_toml_names_the_file(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"is not (TOML|UTF-8 text)") as caught:
        read_toml(path)
    assert str(path) in str(caught.value)
    with pytest.raises(ConfigError, match="cannot read"):
        read_toml(tmp_path / "absent.toml")


def test_presets_are_legal_settings(tmp_path: Path) -> None:
    for name in PRESETS:
        path = tmp_path / f"{name}.toml"
        path.write_text(preset_by_name(name).settings_text())
        parse(RunSettings, read_toml(path), where=str(path)).loss.build(Sampling(1.0, 8, 8), parse_reward("success"))
    with pytest.raises(ConfigError, match="no preset") as caught:
        preset_by_name("nonsense")
    assert all(name in caught.value.remedy for name in PRESETS)


@pytest.mark.parametrize("device", ["/dev/zero", "pipe"])
def test_what_never_ends_is_not_read(device: str, tmp_path: Path) -> None:
    path = tmp_path / device  # an absolute name stays as it is
    if device == "pipe":
        os.mkfifo(path)
    with pytest.raises(ConfigError, match="is a pipe or a device"):
        read_toml(path)


def test_a_file_that_nobody_wrote_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"#" * MOST_FILE_BYTES)
    assert read_toml(path) == {}
    path.write_bytes(b"#" * (MOST_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="has more than 1,000,000 bytes"):
        read_toml(path)


def test_changes_take_the_place_of_settings_and_leave_the_others() -> None:
    table = {"threads": 2, "learner": {"updates": 9, "optimizer": {"beta1": 0.5}}}
    changes = [
        "threads=4",
        "learner.optimizer.schedule=cosine",
        "loss.name = 'grpo'",
        "learner.updates=5",
        "a.b=[1, 2]",
    ]
    changed = with_changes(table, changes)
    assert changed == {
        "threads": 4,
        "learner": {"updates": 5, "optimizer": {"beta1": 0.5, "schedule": "cosine"}},
        "loss": {"name": "grpo"},
        "a": {"b": [1, 2]},
    }
    assert table == {"threads": 2, "learner": {"updates": 9, "optimizer": {"beta1": 0.5}}}, "the file's stay"
    settings = parse(
        RunSettings, with_changes({}, ["learner.updates=5", "learner.optimizer.learning_rate=1e-5"]), where=""
    )
    assert (settings.learner.updates, settings.learner.optimizer.learning_rate) == (5, 1e-5)


@pytest.mark.parametrize(
    ("change", "said"),
    [("threads", "not KEY=VALUE"), ("=4", "not KEY=VALUE"), ("threads.all=4", "'threads' is no table")],
)
def test_changes_that_name_nothing_are_refused(change: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        with_changes({"threads": 2}, [change])


def test_a_change_of_an_unknown_setting_is_refused_with_its_likeliest_name() -> None:
    with pytest.raises(ConfigError, match="unknown key 'learning_rat'") as caught:
        parse(RunSettings, with_changes({}, ["learner.optimizer.learning_rat=1"]), where="run.toml with --set")
    assert "learning_rate" in caught.value.remedy
