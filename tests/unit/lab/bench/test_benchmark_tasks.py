"""Tasks for benchmarks alone: scores by Python's own arithmetic, sparse starts, the split, and other sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from p2prl.errors import ConfigError, LocalProtocolError
from p2prl.tasks.task_registry import TASKS
from p2prl.tasks.task_spec import TaskSpec, TurnsDemonstration
from p2prl_lab.bench.staleness.delay_laws import parse_law
from p2prl_lab.bench.staleness.delayed_training import DelayedTraining
from p2prl_lab.bench.staleness.methods import parse_method
from p2prl_lab.bench.training.decoder_shape import initial_weights
from p2prl_lab.bench.training.environment_checks import check_environment
from p2prl_lab.bench.training.environments import BENCHMARK_TASKS, environment_by_name
from p2prl_lab.bench.training.march512 import MARCH512, TURNS
from p2prl_lab.bench.training.split4 import FIRST_TEST_SEED, SPLIT4, train_rows
from p2prl_lab.bench.training.stacked_decoder import completion_logprobs
from p2prl_lab.bench.training.strict8 import STRICT8
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import warm_path


def worked(prompt: str) -> list[int]:
    """Every running value of a chain, by Python's own arithmetic."""
    value, values = int(prompt[0]), []
    for i in range(1, len(prompt) - 1, 2):
        value = eval(f"({value} {prompt[i]} {prompt[i + 1]}) % 10")
        values.append(value)
    return values


def strict(prompt: str) -> str:
    values = worked(prompt)
    return f"{''.join(map(str, values))}#{values[-1]}"


def marched(prompt: str) -> str:
    value, text = int(prompt[0]), ""
    for step in range(512):
        value = (value * 2 if step in (199, 399) else value + int(prompt[2 + step % 3])) % 10
        text += str(value)
    return text


RIGHT: dict[str, Callable[[str], str]] = {
    "strict8": strict,
    "split4": lambda prompt: f"#{worked(prompt)[-1]}",
    "march512": marched,
}


def demonstrated(spec: TaskSpec, seed: int) -> tuple[str, str]:
    assert callable(spec.demonstration)
    assert not isinstance(spec.demonstration, TurnsDemonstration)
    return spec.demonstration(seed)


@pytest.mark.parametrize("name", sorted(BENCHMARK_TASKS))
def test_only_right_and_finished_completions_score(name: str) -> None:
    task = BENCHMARK_TASKS[name].task
    check_environment(environment_by_name(name))
    assert name not in TASKS.names(), "no run can name it"
    for seed in (0, 7, FIRST_TEST_SEED + 3):
        prompt = task.prompt(seed)
        right = RIGHT[name](prompt)
        assert task.score(prompt, right, True).reward == 1.0
        assert task.score(prompt, " ".join(right), True).reward == 1.0
        assert task.score(prompt, right, False).reward == 0.0
        assert task.score(prompt, right[:-1] + str((int(right[-1]) + 1) % 10), True).reward == 0.0
        assert task.score(prompt, right + "#", True).reward == 0.0
        assert task.score("9" + prompt, right, True).reward == 0.0
        assert task.score(prompt, right * (140_000 // len(right)), True).reward == 0.0


def test_one_wrong_value_costs_the_reward_of_strict8() -> None:
    prompt = STRICT8.task.prompt(3)
    right = strict(prompt)
    for place in range(8):
        wrong = right[:place] + str((int(right[place]) + 1) % 10) + right[place + 1 :]
        assert STRICT8.task.score(prompt, wrong, True).reward == 0.0
    assert STRICT8.task.score(prompt, right[8:], True).reward == 0.0, "an answer without the values"


def test_march512_doubles_at_the_turns_only() -> None:
    assert TURNS == (200, 400)
    assert len(marched("7+352=")) == 512
    assert MARCH512.task.score("7+352=", marched("7+352="), True).reward == 1.0


@pytest.mark.parametrize(
    ("name", "least", "most"), [("strict8", 0.04, 0.12), ("split4", 0.4, 0.55), ("march512", 0.1, 0.3)]
)
def test_share_of_right_demonstrations(name: str, least: float, most: float) -> None:
    """What a perfect copy of the demonstrations would earn; a small model earns less."""
    spec, count = BENCHMARK_TASKS[name], 200 if name == "march512" else 1000
    rewards = [spec.task.score(*demonstrated(spec, seed), True).reward for seed in range(count)]
    assert least < sum(rewards) / count < most


def test_training_rows_and_test_prompts_never_meet() -> None:
    rows = set(train_rows())
    assert len(rows) == 128
    assert {SPLIT4.task.prompt(seed) for seed in range(3000)} == rows
    tested = {SPLIT4.task.prompt(FIRST_TEST_SEED + seed) for seed in range(2000)}
    shown = {demonstrated(SPLIT4, seed)[0] for seed in range(500)}
    assert not rows & (tested | shown)
    assert len(tested) > 1990
    with pytest.raises(LocalProtocolError):
        SPLIT4.task.prompt(1 << 63)


def test_a_size_changes_the_decoder_and_every_name(tmp_path: Path) -> None:
    own, wide = environment_by_name("chain4"), environment_by_name("chain4@96x3")
    assert (wide.shape.width, wide.shape.layers, wide.shape.heads, wide.shape.feedforward) == (96, 3, 4, 384)
    assert (wide.task, wide.name, own.name) == (own.task, "chain4@96x3", "chain4")
    assert warm_path(wide, 0, tmp_path) != warm_path(own, 0, tmp_path)
    assert environment_by_name("chain4@48x2").shape == own.shape
    weights = initial_weights(wide.shape, 1).unsqueeze(0)
    tokens = torch.zeros(1, 2, 3, 4, dtype=torch.int64)
    assert completion_logprobs(wide.shape, weights, tokens[:, :, 0], tokens).shape == (1, 2, 3, 4)
    for name in ("chain4@50x2", "chain4@96", "chain4@0x2", "nothing@48x2"):
        with pytest.raises(ConfigError):
            environment_by_name(name)


def test_long_completions_are_trained_in_small_batches() -> None:
    long, short = environment_by_name("march512"), environment_by_name("chain4")
    assert (long.prompts_per_update, long.warm_batch, long.evaluated_prompts) == (4, 16, (32, 128))
    assert (short.prompts_per_update, short.warm_batch, short.evaluated_prompts) == (16, 128, (256, 1024))


@pytest.mark.parametrize("law", ["const:1", "within:const:1"])
def test_a_long_task_trains(law: str) -> None:
    environment = dataclasses.replace(environment_by_name("march512"), max_new_tokens=140)  # long, and quick to sample
    assert environment.is_long
    plan = TrainingPlan(updates=3, evaluate_every=1, evaluation_prompts=1, final_prompts=1)
    method = parse_method("gepo_t:taper=token", max_completion_tokens=environment.max_new_tokens)
    start = 0.1 * initial_weights(environment.shape, 0).unsqueeze(0)
    (result,) = DelayedTraining(environment, method, parse_law(law), plan, [0], start).run()
    assert len(result.evaluations) == 4
    assert result.evaluations[-1].greedy_seen == 0.0


def test_an_unknown_task_is_answered_with_those_that_can_be_benchmarked() -> None:
    with pytest.raises(ConfigError, match="unknown task 'chain5'") as caught:
        environment_by_name("chain5")
    named = caught.value.remedy.removeprefix("Choose one of ").removesuffix(".").split(", ")
    assert {"chain4", "walk12", *BENCHMARK_TASKS} <= set(named)
    for name in named:
        environment_by_name(name)
    assert "guess" not in named
