"""The small model: a reproducible tokenizer and chat template, a warm start that learns, a directory that loads."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from p2prl.errors import ConfigError
from p2prl.models.base_model.pretrained import LoadedModel, load_pretrained
from p2prl.models.logprobs.policy_logprobs import completion_logprobs
from p2prl.models.run_files.export import export_run_files
from p2prl.models.small_models.language_model import (
    END,
    SMALL_MODEL_RECIPE,
    VOCABULARY,
    chat_prompt,
    make_small_model,
    random_small_model,
    small_tokenizer,
    warm_start_small_model,
)
from p2prl.models.tokenizer.text_codec import TextCodec
from p2prl.tasks.word_problems.problems import demonstration, solution, word_problem

QUESTION = "Ruth has 13 bags; how many?"


@pytest.fixture(scope="module")
def trained() -> tuple[LoadedModel, list[float]]:
    """A model after a short warm start, and its losses."""
    loaded = random_small_model(small_tokenizer(), seed=0)
    losses: list[float] = []
    config = replace(SMALL_MODEL_RECIPE, steps=12, batch=16, warmup_steps=4)
    warm_start_small_model(loaded, demonstration, config=config, on_step=lambda _, loss: losses.append(loss))
    return loaded, losses


def test_tokenizer_is_full_and_always_the_same(trained: tuple[LoadedModel, list[float]]) -> None:
    tokenizer = trained[0].tokenizer
    text = tokenizer.backend_tokenizer.to_str()
    assert len(tokenizer) == len(set(tokenizer.get_vocab().values())) == VOCABULARY
    assert hashlib.sha256(text.encode()).hexdigest() == (
        "f4b160ee09c7ad694eefa457cc6342db77ea5294f8a8b8f4964f8356e93dcaf0"
    ), "the tokenizer's bytes are part of a run's identity"


def test_tokenizer_keeps_every_text(trained: tuple[LoadedModel, list[float]]) -> None:
    tokenizer = trained[0].tokenizer
    for text in ("3*4=12\n12-5=7\n#### 7", "naïve 数 🙂\t x", QUESTION, ""):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert [tokenizer.decode([token]) for token in tokenizer.encode("1234")] == ["1", "2", "3", "4"]


def test_chat_template_renders_roles_and_the_generation_prompt(trained: tuple[LoadedModel, list[float]]) -> None:
    tokenizer = trained[0].tokenizer
    one = [{"role": "user", "content": QUESTION}]
    assert tokenizer.apply_chat_template(one, tokenize=False, add_generation_prompt=True) == chat_prompt(QUESTION)
    system = [{"role": "system", "content": "Be brief."}, *one, {"role": "assistant", "content": "13"}]
    expected = f"<|system|>Be brief.{END}<|user|>{QUESTION}{END}<|assistant|>13{END}"
    assert tokenizer.apply_chat_template(system, tokenize=False) == expected
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode(chat_prompt("x")))[-2:] == [END, "<|assistant|>"]


def test_the_stop_token_is_the_end_of_a_message(trained: tuple[LoadedModel, list[float]]) -> None:
    loaded, _ = trained
    codec = TextCodec(loaded.tokenizer, loaded.model)
    assert codec.stop_ids == {loaded.tokenizer.convert_tokens_to_ids(END)}
    assert codec.vocabulary == VOCABULARY


def test_it_has_five_million_parameters_and_a_run_can_ship_its_files(
    trained: tuple[LoadedModel, list[float]],
) -> None:
    assert 5_000_000 <= trained[0].model.num_parameters() <= 30_000_000
    files = export_run_files(trained[0])
    assert b"<|user|>'" not in files["tokenizer_config.json"], "no template travels"


def test_the_loss_is_that_of_the_complete_vocabulary(trained: tuple[LoadedModel, list[float]]) -> None:
    """The share of the tokens without an embedding of their own is exact, so the model's own softmax agrees."""
    loaded = random_small_model(trained[0].tokenizer, seed=1)
    pairs = [demonstration(seed) for seed in range(8)]
    losses: list[float] = []
    # A rate this small leaves the model as it is; the embeddings of unused tokens are set to their common one.
    config = replace(SMALL_MODEL_RECIPE, steps=1, batch=8, warmup_steps=0, learning_rate=1e-12)
    warm_start_small_model(
        loaded, lambda seed: pairs[seed % 8], config=config, on_step=lambda _, loss: losses.append(loss)
    )
    prompts = [tuple(loaded.tokenizer.encode(chat_prompt(question))) for question, _ in pairs]
    completions = [tuple(loaded.tokenizer.encode(text + END)) for _, text in pairs]
    with torch.no_grad():
        logprobs, mask = completion_logprobs(loaded.model, prompts, completions, 1.0)
    assert losses[-1] == pytest.approx(float(-logprobs.sum() / mask.sum()), rel=1e-4)


def test_warm_start_learns_and_pushes_unused_tokens_down(trained: tuple[LoadedModel, list[float]]) -> None:
    loaded, losses = trained
    assert losses[-1] < 0.75 * losses[0]
    embedding = loaded.model.get_input_embeddings().weight
    token = loaded.tokenizer.convert_tokens_to_ids
    assert torch.equal(embedding[token("Ġyear")], embedding[token("Ġocean")]), "neither is in any demonstration"
    assert not torch.equal(embedding[token("Ġhas")], embedding[token("Ġocean")])


def test_a_saved_model_loads_with_its_template_and_card(
    trained: tuple[LoadedModel, list[float]], tmp_path: Path
) -> None:
    stages: list[str] = []
    config = replace(SMALL_MODEL_RECIPE, steps=1, batch=2, warmup_steps=0)
    make_small_model(
        tmp_path / "model",
        "arithmetic",
        lambda seed: (word_problem(seed).question, solution(word_problem(seed))),
        config=config,
        on_progress=lambda stage, _: stages.append(stage),
    )
    loaded = load_pretrained(str(tmp_path / "model"), device=torch.device("cpu"), dtype="float32")
    assert loaded.tokenizer.get_vocab() == trained[0].tokenizer.get_vocab()
    assert loaded.tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], tokenize=False, add_generation_prompt=True
    ) == chat_prompt(QUESTION)
    assert loaded.model.generation_config.eos_token_id == loaded.tokenizer.eos_token_id
    card = (tmp_path / "model" / "README.md").read_text()
    assert "license: apache-2.0" in card
    assert str(tmp_path) not in card
    assert stages == ["training the tokenizer", "warm start on demonstrations"]


def test_a_warm_start_without_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="steps"):
        replace(SMALL_MODEL_RECIPE, steps=0)
