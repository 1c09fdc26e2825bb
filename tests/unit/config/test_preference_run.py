"""Preferences of a run folder: packed by `init`, scored by the first weights, trained on, and sent to nobody."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from p2prl.cli.commands.export_facts import preferences_text
from p2prl.config.new_run import RunFolder, init_run, open_run, run_file_blobs
from p2prl.config.preference_packing import FOLDER, PAIRS_FILE, REFERENCE_FILE
from p2prl.config.preference_reading import check_preferences, open_preferences
from p2prl.config.presets import preset_by_name
from p2prl.errors import ConfigError
from p2prl.learner.new_run_plan import RunPlan
from p2prl.learner.training.memory_plan import MemoryPlan
from p2prl.learner.training.micro_batch_log import DEFAULT_RULE
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.models.base_model.pretrained import load_pretrained
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.tasks.data.packed_file import PackedFile

SETTINGS = preset_by_name("chain4").settings_text()
MEMORY = MemoryPlan(rule=DEFAULT_RULE, most_tokens=DEFAULT_RULE.tokens)
CPU = torch.device("cpu")
ROWS = [
    {"prompt": "1+2", "chosen": "33", "rejected": "4"},
    {"prompt": "2+2", "chosen": "4", "rejected": "4"},
    {"prompt": "3-1", "chosen": "2", "rejected": "111"},
]


def make(folder: Path, rows: list[dict[str, Any]], *, drop_long: bool = False) -> tuple[RunFolder, list[str]]:
    """A run of the tiny model with these preferences, and what was told."""
    made = tiny_model(seed=3)
    made.model.save_pretrained(folder / "model")
    made.tokenizer.save_pretrained(folder / "model")
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = RunPlan(
        name="unit",
        goal="test",
        task="chain4",
        model=str(folder / "model"),
        preferences=folder / "pairs.jsonl",
        drops_long_preferences=drop_long,
    )
    told: list[str] = []
    run = init_run(folder / "run", plan, settings=SETTINGS, on_progress=lambda *_: None, on_notice=told.append)
    return run, told


def test_pairs_are_packed_as_the_model_writes_answers_and_scored_once(tmp_path: Path) -> None:
    run, told = make(tmp_path, ROWS)
    assert "Preferences: 2 pairs to train on; 1 row with equal answers left out." in told
    made = load_pretrained(str(tmp_path / "model"), device=CPU, dtype="float32")
    file = PackedFile(run.directory / FOLDER / PAIRS_FILE)
    words = [file.record(number) for number in range(len(file))]
    ids = [torch.frombuffer(bytearray(each), dtype=torch.int32).tolist() for each in words]
    end = made.tokenizer.eos_token_id
    texts = [made.tokenizer.decode([token for token in row if token != end]).replace(" ", "") for row in ids]
    wanted = ("1+2", "33", "4", "3-1", "2", "111")
    assert [text[-len(each) :] for text, each in zip(texts, wanted, strict=True)] == list(wanted)
    assert all(row[-1] == end for number, row in enumerate(ids) if number % 3)

    told.clear()
    preferences = open_preferences(run, MEMORY, CPU, told.append)
    assert preferences is not None
    for group in preferences.of_update(0)[:2]:
        for answer, logprobs in zip(group.completions, group.behavior_logprobs, strict=True):
            whole = torch.tensor([[*group.prompt_ids.tolist(), *answer.tolist()]])
            logits = made.model(whole).logits[0, len(group.prompt_ids) - 1 : -1].detach()
            expected = torch.log_softmax(logits, -1).gather(1, whole[0, len(group.prompt_ids) :, None])[:, 0]
            torch.testing.assert_close(torch.from_numpy(logprobs.copy()), expected, atol=1e-5, rtol=1e-5)

    reference = run.directory / FOLDER / REFERENCE_FILE
    reference.rename(reference.with_suffix(".new"))  # as if the first start had been killed while it scored
    assert open_preferences(run, MEMORY, CPU, told.append) is not None
    before = reference.stat().st_mtime_ns
    assert open_preferences(run, MEMORY, CPU, told.append) is not None
    assert reference.stat().st_mtime_ns == before


def test_the_model_card_tells_of_them(tmp_path: Path) -> None:
    run, _ = make(tmp_path, ROWS)
    said = preferences_text(run.directory, run.settings.preferences)
    assert said == "DPO on 2 pairs, 16 an update, β 0.1, with a weight of 0.1"
    assert preferences_text(tmp_path, run.settings.preferences) == ""


def test_volunteers_get_nothing_of_them(tmp_path: Path) -> None:
    run, _ = make(tmp_path, ROWS)
    pairs = (run.directory / FOLDER / PAIRS_FILE).read_bytes()
    assert not run.manifest.data_sets
    assert all(content not in pairs and pairs not in content for _, content in run_file_blobs(run))


def test_settings_without_pairs_and_several_ranks_are_refused(tmp_path: Path) -> None:
    run, _ = make(tmp_path, ROWS)
    check_preferences(run)
    ranks = replace(run.settings.learner, parallel=ParallelConfig(plan="dp2"))
    with pytest.raises(ConfigError, match="in one process"):
        check_preferences(replace(run, settings=replace(run.settings, learner=ranks)))
    changed = open_run(run.directory, ["preferences.beta=0.2"])
    check_preferences(changed)
    (run.directory / FOLDER / PAIRS_FILE).unlink()
    check_preferences(run)
    assert open_preferences(run, MEMORY, CPU, lambda _: None) is None
    with pytest.raises(ConfigError, match="no meaning") as caught:
        check_preferences(changed)
    assert "--preferences" in caught.value.remedy
    with pytest.raises(ConfigError, match=r"preferences\.weight"):
        open_run(run.directory, ["preferences.weight=0"])


def test_rows_that_are_too_long_are_named_or_left_out(tmp_path: Path) -> None:
    context = tiny_model(seed=3).model.config.max_position_embeddings
    long = {"prompt": "1+2", "chosen": "1" * context, "rejected": "4"}
    (tmp_path / "a").mkdir()
    with pytest.raises(ConfigError, match=r"line 2: prompt and answer have .* tokens, more than") as caught:
        make(tmp_path / "a", [ROWS[0], long])
    assert "--drop-long" in caught.value.remedy
    (tmp_path / "b").mkdir()
    _, told = make(tmp_path / "b", [ROWS[0], long], drop_long=True)
    assert "Preferences: 1 pair to train on; 1 row longer than the model's context left out." in told
    (tmp_path / "c").mkdir()
    with pytest.raises(ConfigError, match="no pair is left"):
        make(tmp_path / "c", [ROWS[1]])
