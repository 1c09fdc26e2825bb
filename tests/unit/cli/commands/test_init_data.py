"""`p2prl init` with data: one command to a run folder, with what was found told in sentences."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from p2prl.config.run_folder import open_folder
from tests.unit.cli.invocation import invoke, json_of
from tests.unit.models.chat_tokenizer import save_chat_model
from tests.unit.tasks.data.packing_rig import sums, write_rows


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and data sets."""
    folder = tmp_path_factory.mktemp("init")
    save_chat_model(folder / "model")
    write_rows(folder / "train.jsonl", [*sums(30), sums(1)[0]])
    write_rows(folder / "held.jsonl", sums(4, first=70))
    write_rows(folder / "chat.jsonl", [{"messages": [{"role": "user", "content": "Why?"}], "label": "B"}])
    return folder


def test_a_data_set_becomes_a_run(place: Path, tmp_path: Path) -> None:
    options = ("--model", place / "model", "--data", place / "train.jsonl", "--eval", place / "held.jsonl")
    limits = ("--max-new-tokens", 16, "--probe", "off", "--in", tmp_path)
    result = invoke("init", "mine", *options, "--scorer", "number", *limits)
    assert result.exit_code == 0, result.output
    said = re.sub(r"\s+", " ", result.stderr)
    assert "packing train" in said
    assert "train: prompts from the column 'question', answers from 'answer'." in said
    assert "1 row repeats an earlier one and was left out" in said
    assert "train: 30 rows to train on, 4 for evaluation only" in said
    manifest = open_folder(tmp_path / "mine").manifest
    assert manifest.goal == "train the model on the data set train (scored by number)"
    assert manifest.sampling.max_new_tokens == 16
    assert str(place) not in str(manifest)


def test_several_data_sets_and_a_task_are_mixed(place: Path, tmp_path: Path) -> None:
    options = (
        "--model",
        place / "model",
        "--in",
        tmp_path,
        "--max-new-tokens",
        16,
        "--scorer",
        "number",
        "--probe",
        "off",
    )
    data = ("--data", f"sums={place / 'train.jsonl'}@3", "--data", f"chat={place / 'chat.jsonl'}")
    facts = json_of("init", "mix", *options, *data, "--scorer", "chat=choice", "--task", "chain4@0.5")
    assert facts["tasks"] == {"chain4": 0.5, "chat": 1.0, "sums": 3.0}
    assert facts["goal"] == (
        "train the model on chain4, the data set chat (scored by choice), the data set sums (scored by number)"
    )
    assert len(open_folder(tmp_path / "mix").manifest.data_sets) == 2


def test_tasks_are_mixed_without_data(place: Path, tmp_path: Path) -> None:
    options = ("--model", place / "model", "--in", tmp_path, "--probe", "off")
    facts = json_of("init", "two", *options, "--task", "chain4", "--task", "walk12@2")
    assert facts["tasks"] == {"chain4": 1.0, "walk12": 2.0}
    assert facts["goal"] == "train the model on chain4, walk12"


def test_a_run_that_does_not_fit_tells_the_length_that_does(place: Path, tmp_path: Path) -> None:
    options = ("--model", place / "model", "--data", place / "train.jsonl", "--scorer", "number", "--in", tmp_path)
    refusal = invoke("init", "mine", *options).exception
    assert "with 256 new ones exceed the model's 128" in str(refusal)
    (fits,) = re.findall(r"--max-new-tokens (\d+)", refusal.remedy)
    assert list(tmp_path.iterdir()) == []
    assert invoke("init", "mine", *options, "--max-new-tokens", fits, "--probe", "off").exit_code == 0
