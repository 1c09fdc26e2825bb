"""Names of base models: from the hub, the cache or the card, and never a path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from p2prl.models.base_model.base_model_card import base_model_name


def named(directory: Path, *, card: str = "", config: Mapping[str, object] | None = None, source: str = "") -> str:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"model_type": "qwen3", **(config or {})}))
    if card:
        (directory / "README.md").write_text(card)
    return base_model_name(source or str(directory), directory, parameters=596_049_920)


def test_a_hub_id_is_the_name(tmp_path: Path) -> None:
    assert named(tmp_path / "m", source="Qwen/Qwen3-0.6B", card="# Other\n") == "Qwen/Qwen3-0.6B"
    assert named(tmp_path / "m", source="gpt2") == "gpt2"


def test_a_directory_of_the_hubs_cache_has_the_id_in_its_path(tmp_path: Path) -> None:
    cached = tmp_path / "models--Qwen--Qwen3-0.6B" / "snapshots" / "c1899de289"
    assert named(cached, card="# Other\n") == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("card", "config", "expected"),
    [
        ("", {"_name_or_path": "checkpoints/acme-secret-client"}, "an unnamed qwen3 of 596,049,920 parameters"),
        ("---\nmodel_name: Tiny Math\n---\n# Other\n", {}, "Tiny Math"),
        ("---\nmodel-index:\n- name: tiny-math\n  results: []\n---\n", {}, "tiny-math"),
        ("---\nlicense: mit\n---\n\n# Tiny Math 2 #\n\ntext", {}, "Tiny Math 2"),
        ("# Tiny Math\n# Other", {}, "Tiny Math"),
        ("---\nbase_model: Qwen/Qwen3-0.6B\n---\ntext", {}, "a model fine-tuned from Qwen/Qwen3-0.6B"),
        ("# Tiny\x1b[31m", {}, "an unnamed qwen3 of 596,049,920 parameters"),
        ("", {}, "an unnamed qwen3 of 596,049,920 parameters"),
        ("", {"model_type": 7}, "an unnamed model of 596,049,920 parameters"),
    ],
)
def test_the_card_and_the_configuration_name_the_model(
    tmp_path: Path, card: str, config: dict[str, object], expected: str
) -> None:
    assert named(tmp_path / "m", card=card, config=config) == expected


@pytest.mark.parametrize("path", ["/home/someone/models/secret", "./secret", "../secret", "~/secret", "C:\\secret"])
def test_no_path_becomes_a_name(tmp_path: Path, path: str) -> None:
    for config, card in (({"_name_or_path": path}, ""), ({}, f"# {path}\n"), ({}, f"---\nmodel_name: {path}\n---\n")):
        assert "secret" not in named(tmp_path / "m", config=config, card=card)
        (tmp_path / "m" / "README.md").unlink(missing_ok=True)


def test_a_directory_named_like_a_hub_id_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert named(Path("owner/model"), source="owner/model").startswith("an unnamed")
