"""Data sets of the hub: which files a source names, of what the hub's library lists. Nothing is downloaded here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.data.data_source import open_source
from p2prl.tasks.data.hub_data import hub_files, hub_name

LISTED = {
    "openai/gsm8k": ["main/train/0000.parquet", "main/test/0000.parquet", "socratic/train/0000.parquet", "README.md"],
    "me/rows": ["default/train/0001.parquet", "default/train/0000.parquet", "other/train/0000.parquet"],
    "me/one": ["only/train/0000.parquet"],
    "me/none": [],
}


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub whose files hold their own names as JSON lines, so that they can be read without pyarrow."""

    def listed(name: str, **options: Any) -> list[str]:
        assert options == {"repo_type": "dataset", "revision": "refs/convert/parquet"}
        if name not in LISTED:
            raise OSError("404: no such repository")
        return LISTED[name]

    def downloaded(name: str, file: str, **options: Any) -> str:
        assert options["revision"] == "refs/convert/parquet"
        path = tmp_path / file.replace("/", "-")
        path.write_text(json.dumps({"prompt": f"{name} {file}"}) + "\n")
        return str(path)

    monkeypatch.setattr(huggingface_hub, "list_repo_files", listed)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", downloaded)
    hub_files.cache_clear()


@pytest.mark.parametrize(
    ("source", "files"),
    [
        ("hub:openai/gsm8k/main@train", ["main/train/0000.parquet"]),
        ("hub:openai/gsm8k/main@test", ["main/test/0000.parquet"]),
        ("hub:me/rows@train", ["default/train/0000.parquet", "default/train/0001.parquet"]),
        ("hub:me/one@train", ["only/train/0000.parquet"]),
    ],
)
def test_a_source_names_the_files_of_its_split(source: str, files: list[str]) -> None:
    name = "/".join(source.removeprefix("hub:").partition("@")[0].split("/")[:2])
    rows = list(open_source(Path(source)).rows())
    assert [row["prompt"] for row in rows] == [f"{name} {file}" for file in files]
    assert hub_name(source) == name.split("/")[1]


@pytest.mark.parametrize(
    ("source", "said", "remedy"),
    [
        ("hub:gsm8k", "names no split", "hub:openai/gsm8k/main@train"),
        ("hub:openai/gsm8k", "names no split", "@SPLIT"),
        ("hub:openai/gsm8k@train", "several configurations", "main, socratic"),
        ("hub:openai/gsm8k/big@train", "no configuration 'big'", "main, socratic"),
        ("hub:me/one@test", "no split 'test'", "train"),
        ("hub:me/none@train", "keeps no parquet files", "hub:OWNER"),
        ("hub:me/missing@train", "404: no such repository", "connection"),
    ],
)
def test_what_names_nothing_is_refused_with_what_there_is(source: str, said: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        open_source(Path(source))
    assert remedy in caught.value.remedy
