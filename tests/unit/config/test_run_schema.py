"""Schema of run.toml: the committed file matches the settings, and describes every key."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from p2prl.config.presets import PRESETS
from p2prl.config.run_schema import run_schema, schema_text

COMMITTED = Path(__file__).parents[3] / "docs" / "run.schema.json"


def keys(table: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    for name, shape in table["properties"].items():
        yield f"{path}{name}", shape
        if "properties" in shape:
            yield from keys(shape, f"{path}{name}.")


def test_committed_schema_is_current() -> None:
    assert COMMITTED.read_text() == schema_text(), "run: python -m p2prl.config.run_schema > docs/run.schema.json"


def test_every_key_is_explained() -> None:
    assert [name for name, shape in keys(json.loads(schema_text())) if len(shape.get("description", "")) < 10] == []


def test_defaults_and_unknown_keys_are_those_of_the_settings() -> None:
    schema = run_schema()
    assert schema["additionalProperties"] is False
    shapes = dict(keys(schema))
    assert shapes["learner.publish"] | {"description": ""} == {
        "enum": ["manifest", "auto"],
        "default": "manifest",
        "description": "",
    }
    assert shapes["learner.optimizer.learning_rate"]["type"] == "number"
    assert "default" not in shapes["loss.guards.kl_brake"], "a guard that is not set is off"
    assert shapes["network.listen"]["default"] == ["/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0"]


def test_settings_of_every_preset_use_known_keys() -> None:
    shapes = dict(keys(run_schema()))

    def check(table: dict[str, Any], path: str = "") -> None:
        for name, value in table.items():
            shape = shapes[f"{path}{name}"]
            if "properties" in shape:
                check(value, f"{path}{name}.")

    for preset in PRESETS.values():
        check(tomllib.loads(preset.settings_text()))
