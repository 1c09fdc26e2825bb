"""The model card says how a run's prompts were written, with which scorers and on which data: whatever the run did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from transformers import AutoTokenizer

from p2prl.cli.views.export_card import model_card
from p2prl.config.new_run import RunFolder
from p2prl.config.prompt_record import read_prompt_record
from p2prl.errors import ConfigError
from p2prl.protocol.manifests import TaskShare
from p2prl.tasks.data.packed_data import PackedPrompts
from tests.unit.cli.views.test_export_card import facts
from tests.unit.config.test_run_prompts import ROWS, made
from tests.unit.models.chat_tokenizer import TEMPLATE, save_chat_model
from tests.unit.tasks.data.packing_rig import sums, write_rows

OTHER_TEMPLATE = TEMPLATE.replace("user", "guest") if "user" in TEMPLATE else TEMPLATE + "{# other #}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_model(tmp_path_factory.mktemp("with-template") / "model")


def card_of(folder: RunFolder) -> str:
    """The card of an export of the run, with what the run folder says of its prompts."""
    return model_card(facts(folder.manifest, prompts=read_prompt_record(folder.directory)))


def is_rendered(folder: RunFolder, system: str) -> bool:
    """Whether the packed prompt of the first row is the one that transformers renders, and not the text alone."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder.directory / "model", local_files_only=True)
    asked = [{"role": "system", "content": system}] * bool(system) + [{"role": "user", "content": ROWS[0]["question"]}]
    rendered = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    packed = PackedPrompts(folder.directory / "data" / "sums" / "prompts.packed", rows=len(ROWS)).token_ids(0)
    assert packed in (tuple(rendered), tuple(tokenizer(ROWS[0]["question"])["input_ids"]))
    return packed == tuple(rendered)


@pytest.mark.parametrize("choice", ["", "off", OTHER_TEMPLATE])
@pytest.mark.parametrize("procedural", [False, True])
@pytest.mark.parametrize("system", ["", "Be `brief`."])
def test_the_card_says_whether_the_template_was_used(
    tmp_path: Path, model: Path, choice: str, procedural: bool, system: str
) -> None:
    if choice == "off" and system:
        with pytest.raises(ConfigError):
            made(tmp_path / "run", model, write_rows(tmp_path / "t", ROWS), chat_template=choice, system=system)
        return
    changes: dict[str, Any] = {"chat_template": choice, "system": system}
    if procedural:
        changes["mix"] = (TaskShare("chain4", 1.0),)
    folder = made(tmp_path / "run", model, write_rows(tmp_path / "train.jsonl", ROWS), **changes)
    card = card_of(folder)
    used = is_rendered(folder, system)
    assert used is (choice != "off")
    assert ("with the tokenizer's chat template (`apply_chat_template`) around every prompt" in card) is used
    assert ("as plain text, without a chat template" in card) is not used
    exported = AutoTokenizer.from_pretrained(folder.directory / "model", local_files_only=True).chat_template
    assert (f"- BLAKE3 of the chat template: `{blake3(exported.encode()).hexdigest()}`" in card) is used
    assert ("- System prompt: `` Be `brief`. ``" if system else "- System prompt: none") in card


def test_the_card_names_scorers_weights_rows_and_digests(tmp_path: Path, model: Path) -> None:
    held_out = write_rows(tmp_path / "held.jsonl", sums(5, first=90))
    folder = made(
        tmp_path / "run", model, write_rows(tmp_path / "train.jsonl", ROWS),
        scorers=["number", "0.25*exact"], held_out=[str(held_out)],
    )  # fmt: skip
    (data,) = folder.manifest.data_sets
    assert {each["scorer"]: each["weight"] for each in json.loads(data.scoring)["rewards"]} == {
        "number": 1.0,
        "exact": 0.25,
    }
    card = card_of(folder)
    assert f"- Scorers of `sums`, with their weights: `{data.scoring}`" in card
    assert "- Rows of `sums`: 40 to train on." in card
    for digest in (data.prompts.root, data.answers.root, data.held_out):
        assert f"`{digest.hex()}`" in card


def test_what_an_earlier_program_did_not_keep_is_not_claimed(tmp_path: Path, model: Path) -> None:
    folder = made(tmp_path / "run", model, write_rows(tmp_path / "train.jsonl", ROWS))
    (folder.directory / "prompts.json").unlink()
    card = card_of(folder)
    assert "that is not known, as an earlier p2prl made the run" in card
    assert "plain text" not in card
    assert "around every prompt" not in card
    (folder.directory / "prompts.json").write_text('{"template_blake3": 5}')
    with pytest.raises(ConfigError, match=r"prompts\.json"):
        read_prompt_record(folder.directory)
