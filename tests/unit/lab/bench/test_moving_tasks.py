"""Tasks that change while a policy trains: scores by plain arithmetic, schedules, lengths and names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.task_registry import TASKS
from p2prl_lab.bench.training import letter_chains
from p2prl_lab.bench.training.environment_checks import check_environment
from p2prl_lab.bench.training.environments import MOVING_TASKS, USUAL_PERIOD, environment_by_name
from p2prl_lab.bench.training.letter_chains import NEW, OLD, LetterChain
from p2prl_lab.bench.training.split4 import FIRST_TEST_SEED
from p2prl_lab.bench.training.training_plan import TrainingPlan
from p2prl_lab.bench.training.warm_start import warm_path

RIGHT = {
    "a": "v + 1", "b": "v + 3", "c": "v + 7", "d": "3 * v", "e": "7 * v + 1", "f": "9 * v + 2",
    "U": "3 * v + 4", "V": "7 * v + 2", "W": "9 * v + 5", "X": "3 * v + 1", "Y": "7 * v + 8", "Z": "9 * v",
}  # fmt: skip
FORMER = {"U": "v + 5", "V": "v + 9", "W": "v + 2", "X": "v + 8", "Y": "v + 5", "Z": "v + 7"}


def worked(prompt: str, rules: dict[str, str], *, written_out: bool) -> str:
    value, text = int(prompt[0]), ""
    for letter in prompt[1:-1]:
        if letter != ".":
            after = eval(rules[letter], {"v": value}) % 10
            text += f"{value}{letter}{after};" if written_out else str(after)
            value = after
    return text


@pytest.mark.parametrize("name", sorted(MOVING_TASKS))
def test_a_phase_rewards_what_its_rules_give_and_nothing_else(name: str) -> None:
    check_environment(environment_by_name(name))
    assert name not in TASKS.names(), "no run can name it"
    for phase in MOVING_TASKS[name].phases:
        rules = {**RIGHT, **FORMER} if phase.flipped else RIGHT
        for seed in (0, 7, (1 << 62) + 3):
            prompt = phase.prompt(seed)
            right = worked(prompt, rules, written_out=phase.form.written_out)
            assert phase.score(prompt, right, True).reward == 1.0
            assert phase.score(prompt, " ".join(right), True).reward == 1.0
            assert phase.score(prompt, right, False).reward == 0.0
            assert phase.score(prompt, right + "1", True).reward == 0.0
            last = -2 if phase.form.written_out else -1
            wrong = right[:last] + str((int(right[last]) + 1) % 10) + ";" * (-1 - last)
            assert phase.score(prompt, wrong, True).reward == 0.0
            for broken in ("9" + prompt, "x" + prompt[1:], prompt[:-1] + "-", prompt[:3] + "q" + prompt[4:]):
                assert phase.score(broken, right, True).reward == 0.0


def test_the_older_map_of_a_skill_is_never_right_and_every_map_is_one_to_one() -> None:
    for letter in NEW:
        maps = (NEW[letter], OLD[letter])
        images = [[(factor * value + added) % 10 for value in range(10)] for factor, added in maps]
        assert all(new != old for new, old in zip(*images, strict=True))
        assert all(len(set(image)) == 10 for image in images)


def test_one_more_skill_arrives_each_period_and_the_last_phase_stays() -> None:
    environment = environment_by_name("arrive8:5")

    def asked(update: int) -> set[str]:
        letters = {letter for seed in range(200) for letter in environment.at(update).prompt(seed)}
        return letters & set(NEW)

    assert [len(asked(update)) for update in (0, 4, 5, 24, 25, 10**6)] == [1, 1, 2, 5, 6, 6]
    assert asked(4) == {"U"}


def test_a_rule_flips_each_period_and_no_prompt_shows_it() -> None:
    environment = environment_by_name("flip8:5")
    for update, flipped in ((0, False), (4, False), (5, True), (9, True), (10, False), (15, True)):
        here = environment.at(update)
        prompt = here.prompt(3)
        assert prompt == environment.prompt(3)
        right = worked(prompt, {**RIGHT, **FORMER} if flipped else RIGHT, written_out=False)
        assert here.task.score(prompt, right, True).reward == 1.0
    assert environment_by_name("chain4").at(77) is not None
    assert environment_by_name("chain4").at(77).name == "chain4"


def test_two_steps_of_a_prompt_are_skills_which_demonstrations_mostly_apply_by_the_older_map() -> None:
    environment = environment_by_name("arrive8")
    kept = steps = 0
    for seed in range(400):
        prompt, shown = environment.demonstration(seed)
        before = int(prompt[0])
        for letter, after in zip(prompt[1:-1], map(int, shown), strict=True):
            if letter in NEW:
                steps += 1
                kept += after == eval(RIGHT[letter], {"v": before}) % 10
                assert after in {eval(rules[letter], {"v": before}) % 10 for rules in (RIGHT, FORMER)}
            before = after
    assert 1.8 < steps / 400 <= 2.0  # both may fall on one place
    assert 0.3 < kept / steps < 0.4


def test_completions_of_arrive40_are_long() -> None:
    lengths = [len(environment_by_name("arrive40").demonstration(seed)[1]) + 1 for seed in range(300)]
    assert min(lengths) == 121
    assert max(lengths) == 177
    assert 145 < sum(lengths) / 300 < 152


def test_names_hold_the_period_and_warm_starts_do_not_depend_on_it() -> None:
    usual, own = environment_by_name("arrive8"), environment_by_name("arrive8:64@96x3")
    assert usual.name == f"arrive8:{USUAL_PERIOD}"
    assert own.name == "arrive8:64@96x3"
    assert own.at(700).name == own.name
    assert environment_by_name(own.name).shape == own.shape
    twin = environment_by_name("arrive8:7@96x3")
    assert warm_path(own, 3, Path("w")) == warm_path(twin, 3, Path("w")) != warm_path(usual, 3, Path("w"))
    for wrong in ("arrive8:0", "chain4:32", "arrive8:", "arrive8:x"):
        with pytest.raises(ConfigError, match="unknown task"):
            environment_by_name(wrong)


def test_groups_of_another_size_leave_the_completions_of_an_update_as_they_are() -> None:
    environment = environment_by_name("arrive8")
    sizes = {size: TrainingPlan(group_size=size).prompts_of(environment) for size in (4, 8, 16, 32, 64)}
    assert sizes == {4: 32, 8: 16, 16: 8, 32: 4, 64: 4}  # each of the four samplers needs a prompt
    assert TrainingPlan(group_size=64, prompts=12).prompts_of(environment) == 12
    for legal in ({"group_size": 6}, {"group_size": 0}, {"prompts": 2}, {"prompts": -4}):
        with pytest.raises(ConfigError):
            TrainingPlan(**legal)


def test_phases_are_tasks_of_one_name() -> None:
    for name, moving in MOVING_TASKS.items():
        assert {phase.name for phase in moving.phases} == {name} == {moving.spec.name}
        assert all(isinstance(phase, LetterChain) for phase in moving.phases)


def test_every_phase_has_two_evaluations_and_a_run_six_periods() -> None:
    for period, every in ((32, 16), (64, 16), (50, 10), (5, 1), (1, 1), (7, 1), (24, 12)):
        environment = environment_by_name(f"arrive8:{period}")
        assert (environment.evaluate_every, environment.updates) == (every, 6 * period)
        TrainingPlan(updates=environment.updates, evaluate_every=environment.evaluate_every)
    assert (environment_by_name("chain4").evaluate_every, environment_by_name("chain4").updates) == (20, 200)


def test_each_phase_of_rows8_has_rows_of_its_own_and_is_tested_on_others() -> None:
    first, last = (environment_by_name("rows8:5").at(update).task for update in (0, 99))
    trained = [{task.prompt(seed) for seed in range(12_000)} for task in (first, last)]
    assert [len(rows) for rows in trained] == [1024, 1024]
    assert not trained[0] & trained[1]
    tested = {last.prompt(FIRST_TEST_SEED + seed) for seed in range(3000)}
    assert len(tested) > 2900
    assert not tested & trained[1]
    shown = {environment_by_name("rows8").demonstration(seed)[0] for seed in range(3000)}
    assert len(shown) > 2900


def test_a_test_prompt_that_is_a_training_row_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    form = replace(MOVING_TASKS["rows8"].phases[0].form, name="narrow8", rows=3)
    drawn = {1 << 32: "other", (1 << 32) + 1: "taken", (1 << 32) + 2: "other", (1 << 32) + 3: "third"}
    drawn |= {FIRST_TEST_SEED: "taken", FIRST_TEST_SEED + 1: "free"}
    monkeypatch.setattr(letter_chains, "_drawn", lambda _form, _skills, seed: drawn[seed])
    task = LetterChain(form, "U")
    assert {task.prompt(seed) for seed in range(64)} == {"other", "taken", "third"}
    assert task.prompt(FIRST_TEST_SEED) == task.prompt(FIRST_TEST_SEED + 1) == "free"
