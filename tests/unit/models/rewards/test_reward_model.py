"""Reward models: scores against logits computed by hand, and folders that are refused with the cause."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from p2prl.errors import ConfigError, MachineError
from p2prl.models.rewards.reward_model import RewardModel, stored_weights
from p2prl.models.rewards.reward_model_folder import (
    reward_model_digest,
    reward_model_directory,
    reward_model_files,
    reward_model_kind,
)
from p2prl.models.rewards.run_reward import line_ends
from p2prl.models.small_models.tiny_models import BOS, EOS, PAD
from tests.unit.models.rewards.classifiers import classifier

CPU = torch.device("cpu")
PROMPT = "3+4*2-7="


def ids_of(tokenizer: Any, *parts: str) -> list[int]:
    """Each character or named control token by itself."""
    return [
        token for part in parts for token in tokenizer.convert_tokens_to_ids(list(part) if len(part) > 1 else [part])
    ]


def control(tokenizer: Any, token: str) -> int:
    found: int = tokenizer.convert_tokens_to_ids(token)
    return found


def test_an_orm_scores_a_completion_with_its_logit(tmp_path: Path) -> None:
    model, tokenizer = classifier(tmp_path, "orm")
    judge = RewardModel(reward_model_directory(str(tmp_path)), CPU)
    begin, end = control(tokenizer, BOS), control(tokenizer, EOS)
    for completion, ending in (("747#7", EOS), ("74", ""), ("", EOS)):
        row = [begin, *ids_of(tokenizer, PROMPT), *ids_of(tokenizer, *completion), *([end] if ending else [])]
        with torch.no_grad():
            states = model.transformer(torch.tensor([row])).last_hidden_state[0, -1]
            expected = float(states @ model.score.weight[0])
        found = judge.judge(PROMPT, completion, ending=ending, step_ends=None)
        assert found.outcome == pytest.approx(expected, abs=1e-5)
        assert (found.steps, found.ends) == ((), ())
    assert judge.cut == 0


def test_a_prm_scores_the_ends_of_steps_with_the_logistic_function(tmp_path: Path) -> None:
    model, tokenizer = classifier(tmp_path, "prm")
    judge = RewardModel(tmp_path, CPU)
    row = [control(tokenizer, BOS), *ids_of(tokenizer, PROMPT), *ids_of(tokenizer, *"747#7")]
    with torch.no_grad():
        logits = (model.transformer(torch.tensor([row])).last_hidden_state[0] @ model.classifier.weight[0]).tolist()
    bias = float(model.classifier.bias.detach()[0])
    found = judge.judge(PROMPT, "747#7", ending=EOS, step_ends=(0, 1, 2, 4))
    expected = [1 / (1 + math.exp(-logits[1 + len(PROMPT) + end] - bias)) for end in (0, 1, 2, 4)]
    assert found.steps == pytest.approx(expected, abs=1e-5)
    assert found.ends == (0, 1, 2, 4)
    assert judge.judge(PROMPT, "747#7", ending="", step_ends=()).steps == ()


@pytest.mark.parametrize("kind", ["orm", "prm"])
def test_a_model_that_reads_both_ways_gets_what_its_tokenizer_puts_around_a_text(tmp_path: Path, kind: str) -> None:
    model, tokenizer = classifier(tmp_path, kind, family="bert")
    judge = RewardModel(tmp_path, CPU)
    row = torch.tensor([tokenizer(PROMPT + "747")["input_ids"]])
    assert row[0, [0, -1]].tolist() == [control(tokenizer, BOS), control(tokenizer, EOS)]
    with torch.no_grad():
        logits = model(row).logits.flatten().tolist()
    found = judge.judge(PROMPT, "747", ending="", step_ends=None if kind == "orm" else (2,))
    if kind == "orm":
        assert found.outcome == pytest.approx(logits[0], abs=1e-6)
    else:
        assert found.steps == pytest.approx([1 / (1 + math.exp(-logits[-2]))], abs=1e-6)


@pytest.mark.parametrize("token", [BOS, EOS, PAD])
def test_a_control_token_in_a_completion_is_plain_text(tmp_path: Path, token: str) -> None:
    model, tokenizer = classifier(tmp_path, "orm")
    judge = RewardModel(tmp_path, CPU)
    unknown = control(tokenizer, PAD)  # `<`, `p` and `>` are no symbols of chain4
    row = [control(tokenizer, BOS), *ids_of(tokenizer, PROMPT), *ids_of(tokenizer, "7"), *[unknown] * len(token)]
    assert len(row) > len(tokenizer(PROMPT + "7" + token)["input_ids"]), "the tokenizer itself would make it one token"
    with torch.no_grad():
        expected = float(model(torch.tensor([row])).logits)
    assert judge.judge(PROMPT, "7" + token, ending="", step_ends=None).outcome == pytest.approx(expected, abs=1e-6)
    begun = judge.judge(BOS + PROMPT, "7", ending="", step_ends=None)
    assert begun == judge.judge(PROMPT, "7", ending="", step_ends=None), (
        "a prompt that has its first token gets no other"
    )


def test_a_score_does_not_depend_on_what_was_scored_before(tmp_path: Path) -> None:
    classifier(tmp_path, "prm")
    judge = RewardModel(tmp_path, CPU)
    texts = ["7", "74", "747#7", "7777777"]
    once = [judge.judge(PROMPT, text, ending="", step_ends=range(len(text))) for text in texts]
    other = RewardModel(tmp_path, CPU)
    assert [other.judge(PROMPT, text, ending="", step_ends=range(len(text))) for text in texts[::-1]] == once[::-1]


def test_what_is_beyond_the_context_is_not_read_and_counted(tmp_path: Path) -> None:
    classifier(tmp_path, "prm")
    judge = RewardModel(tmp_path, CPU)
    room = 32 - 1 - len(PROMPT)
    long = judge.judge(PROMPT, "7" * (room + 5), ending="", step_ends=range(room + 5))
    assert (len(long.steps), len(long.ends), judge.cut) == (room, room, 1)
    assert long == judge.judge(PROMPT, "7" * room, ending="", step_ends=range(room))
    assert judge.cut == 1


def test_steps_of_rows_are_lines() -> None:
    assert line_ends("first\nsecond\n\n  \nthird") == (5, 12, 21)
    assert line_ends(" \n\n") == line_ends("") == ()


def test_a_score_that_is_no_number_stops(tmp_path: Path) -> None:
    classifier(tmp_path, "orm")
    judge = RewardModel(tmp_path, CPU)
    with torch.no_grad():
        judge._model.score.weight.fill_(1e9)
    with pytest.raises(MachineError, match="gave a completion the score"):
        judge.judge(PROMPT, "7", ending="", step_ends=None)
    with torch.no_grad():
        judge._model.score.weight.fill_(math.nan)
    with pytest.raises(MachineError, match="score nan"):
        judge.judge(PROMPT, "7", ending="", step_ends=None)


def change_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def without(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()

    return change


def without_head(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: each for name, each in weights.items() if "score" not in name}, folder / "model.safetensors")


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (pickled, r"only pytorch_model\.bin, which can hold code"),
        (without("tokenizer.json"), r"has no tokenizer\.json"),
        (without("config.json"), r"has no config\.json"),
        (change_config(auto_map={"AutoModel": "modeling.Own"}), "requires code through 'auto_map'"),
        (change_config(architectures=["GPT2LMHeadModel"]), "names the architecture GPT2LMHeadModel"),
        (change_config(architectures=None), "names the architecture nothing"),
        (change_config(model_type="no-such"), r"config\.json of the reward model .* cannot be used"),
        (change_config(id2label={"0": "no", "1": "yes"}, label2id={"no": 0, "yes": 1}), "has 2 labels"),
        (without_head, r"the weights of the reward model .* lack score\.weight"),
        (change_config(n_embd=24), "have other shapes than its config"),
    ],
)  # fmt: skip
def test_folders_that_are_refused(tmp_path: Path, change: Callable[[Path], None], cause: str) -> None:
    classifier(tmp_path, "orm")
    change(tmp_path)
    with pytest.raises(ConfigError, match=cause) as caught:
        RewardModel(reward_model_directory(str(tmp_path)), CPU)
    assert caught.value.remedy


def test_weights_of_another_type_are_refused_and_16_bits_are_kept(tmp_path: Path) -> None:
    classifier(tmp_path, "orm")
    weights = load_file(tmp_path / "model.safetensors")
    count = sum(each.numel() for each in weights.values())
    save_file({name: each.bfloat16() for name, each in weights.items()}, tmp_path / "model.safetensors")
    assert stored_weights(tmp_path) == (count, torch.bfloat16)
    judge = RewardModel(tmp_path, CPU)
    assert next(judge._model.parameters()).dtype == torch.bfloat16
    save_file({name: each.to(torch.int8) for name, each in weights.items()}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="are of type I8"):
        RewardModel(tmp_path, CPU)


def test_the_digest_is_that_of_every_file_that_is_read(tmp_path: Path) -> None:
    classifier(tmp_path, "prm")
    assert reward_model_kind(tmp_path) == "prm"
    first = reward_model_digest(tmp_path)
    assert len(bytes.fromhex(first)) == 16
    (tmp_path / "notes.md").write_text("not read")
    assert reward_model_digest(tmp_path) == first
    for name in reward_model_files(tmp_path):
        before = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        assert reward_model_digest(tmp_path) != first, name
        (tmp_path / name).write_bytes(before)
    assert reward_model_digest(tmp_path) == first
