"""The owner's limits on disk: layers, origins, suggestions, and a commented file that means nothing until edited."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from p2prl.cli.commands.owner_controls import option_texts
from p2prl.config.owner_limits import config_file, config_text, load_limits, remember_limits
from p2prl.controls.limits import SPECS, Limits
from p2prl.errors import ConfigError


def test_the_commented_file_changes_nothing_and_its_examples_are_valid(tmp_path: Path) -> None:
    config_file(tmp_path).write_text(config_text())
    assert load_limits(tmp_path) == Limits()
    config_file(tmp_path).write_text(re.sub(r"^# (\S+ = )", r"\1", config_text(), flags=re.MULTILINE))
    shown = load_limits(tmp_path).document()
    assert {name: each["value"] for name, each in shown.items()} == {spec.name: spec.example for spec in SPECS}
    assert {each["origin"] for each in shown.values()} == {"file"}


def test_layers_and_origins(tmp_path: Path) -> None:
    config_file(tmp_path).write_text('[limits]\nram = "4GB"\ngpu.temp = "80C"\ndisk = "20GB"\n')
    remember_limits(tmp_path, {"gpu.temp": "75C", "disk": "30GB"})
    shown = load_limits(tmp_path, option_texts(disk_gb=40.0, ram_gb=0.0)).document()
    assert shown["ram"] == {"value": "4GB", "origin": "file"}
    assert shown["gpu.temp"] == {"value": "75C", "origin": "command"}
    assert shown["disk"] == {"value": "40GB", "origin": "option"}
    assert shown["idle"] == {"value": "off", "origin": "default"}
    remember_limits(tmp_path, {"gpu.temp": "default"})
    assert load_limits(tmp_path).document()["gpu.temp"] == {"value": "80C", "origin": "file"}
    assert stat.S_IMODE((tmp_path / "limits.json").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        ('[limits]\ngpu.tmp = "75C"\n', "no limit 'gpu.tmp'", "Did you mean gpu.temp?"),
        ('[limit]\nram = "4GB"\n', "unknown key 'limit'", "Did you mean [limits]?"),
        ('[limits]\nram = "lots"\n', "ram=lots is not understood", 'For example ram = "8GB".'),
        ("[limits]\nram = 4\n", "ram=4 is not understood", 'For example ram = "8GB".'),
        ("[limits]\nram = true\n", "must be a text or a number", 'Write ram = "…".'),
        ("ram = \n", "is not TOML", "Fix that line; strings need quotes."),
    ],
)
def test_errors_name_the_right_key(tmp_path: Path, text: str, message: str, remedy: str) -> None:
    config_file(tmp_path).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_limits(tmp_path)
    assert str(config_file(tmp_path)) in str(caught.value)
    assert message in str(caught.value)
    assert caught.value.remedy == remedy


def test_a_wrong_command_is_not_remembered(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        remember_limits(tmp_path, {"ram": "4GB", "gpu.power": "1 horse"})
    assert not (tmp_path / "limits.json").exists()
    config_file(tmp_path).write_text("[limits")
    with pytest.raises(ConfigError, match="is not TOML"):
        remember_limits(tmp_path, {"ram": "4GB"})
    assert not (tmp_path / "limits.json").exists()
    config_file(tmp_path).unlink()
    (tmp_path / "limits.json").write_text("[")
    with pytest.raises(ConfigError, match="damaged"):
        load_limits(tmp_path)


def test_a_remembered_limit_of_an_earlier_release_is_named_and_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text('{"net.up": "5"}')
    with pytest.raises(ConfigError, match=r"limits\.json: net\.up=5 is not understood: it takes a number") as caught:
        load_limits(tmp_path)
    assert f"Correct it there, or delete {path}" in caught.value.remedy


def test_options_become_texts_that_mean_the_same() -> None:
    texts = option_texts(vram_gb=7.25, ram_gb=0.0, upload_mbit=0.000001, monthly_gb=1e6, disk_gb=20.0)
    assert texts == {"gpu.memory": "7.25GB", "net.up": "0.000001Mbit", "net.month": "1000000GB", "disk": "20GB"}
    Limits.layered({"option": texts})
