"""Verdict on a probe: which runs are refused, why, and with which remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2prl.errors import ConfigError
from p2prl.tasks.new_run_verdict import FEWEST_GROUPS, Fault, ProbeFacts, fault_of, figures_of, figures_text, judge

FACTS = ProbeFacts(max_new_tokens=64, room=1_000, template_unused=False)
GOOD = figures_of([(1.0, 0.0)] * 32, [10] * 64, 4)
SILENT = figures_of([(0.0, 0.0)] * 32, [10] * 64, 4)
PERFECT = figures_of([(1.0, 1.0)] * 32, [10] * 64, 0)
EQUAL = figures_of([(1.0, 1.0), (0.0, 0.0)] * 16, [10] * 64, 0)
CUT = figures_of([(0.0, 0.0)] * 32, [64] * 64, 64)
UNSCORED = figures_of([(0.0, 0.0)] * 32, [64] * 64, 64, ["timeout"] * 64)


@pytest.mark.parametrize(
    ("figures", "fault"),
    [
        (GOOD, None),
        (SILENT, Fault.NO_REWARD),
        (figures_of([(-1.0, -1.0)] * 32, [1] * 64, 0), Fault.NO_REWARD),
        (PERFECT, Fault.ALL_RIGHT),
        (EQUAL, Fault.ALL_EQUAL),
        (CUT, Fault.ALL_TRUNCATED),
        (UNSCORED, Fault.UNSCORED),
        (figures_of([(0.0, 0.0)], [64] * 2, 2, ["timeout"] * 2), Fault.UNSCORED),
        (figures_of([(0.0, 0.0)] * 32, [64] * 64, 64, ["timeout"] * 63), Fault.ALL_TRUNCATED),
        (figures_of([(1.0, 0.0)] + [(0.0, 0.0)] * 31, [64] * 64, 64), None),  # a scorer of truncated text
        (figures_of([(0.0, 0.0)] * (FEWEST_GROUPS - 1), [1] * 14, 0), None),
        (figures_of([(0.0, 0.0)] * FEWEST_GROUPS, [1] * 16, 0), Fault.NO_REWARD),
        (figures_of([], [], 0), None),
        (figures_of([(-1.0, -1.0), (0.0, 0.0)] * 16, [1] * 64, 0), Fault.ALL_EQUAL),
    ],
)
def test_fault(figures: object, fault: Fault | None) -> None:
    assert fault_of(figures) is fault  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reward", "full", "fault"),
    [
        (0.1, 1.1, Fault.ALL_EQUAL),  # the format is always met, the answer never right
        (1.0, 1.1, Fault.ALL_EQUAL),
        (1.0 + 0.1, 1.1, Fault.ALL_RIGHT),
        (0.1 + 0.2, 0.3, Fault.ALL_RIGHT),  # rounding
        (0.3 - 1e-6, 0.3, Fault.ALL_EQUAL),
        (0.5, 0.5, Fault.ALL_RIGHT),
        (0.0, 0.0, Fault.ALL_RIGHT),  # penalties only, and none of them earned
        (-0.1, 0.0, Fault.NO_REWARD),
        (0.0, 1.1, Fault.NO_REWARD),
    ],
)
def test_only_the_full_reward_means_that_all_is_right(reward: float, full: float, fault: Fault) -> None:
    assert fault_of(figures_of([(reward, reward)] * 32, [1] * 64, 0), full) is fault


def test_the_full_reward_is_that_of_the_task() -> None:
    facts = replace(FACTS, full_rewards={"sums": 1.1, "walk": 0.1}, uses_template=True)
    partly = figures_of([(0.1, 0.1)] * 32, [1] * 64, 0)
    with pytest.raises(ConfigError, match="all earned the same") as caught:
        judge({"sums": partly}, facts)
    assert "easier prompts" in caught.value.remedy
    assert "--system" in caught.value.remedy
    with pytest.raises(ConfigError, match="the full reward") as caught:
        judge({"walk": partly}, facts)
    assert "harder prompts" in caught.value.remedy
    with pytest.raises(ConfigError, match="the full reward"):
        judge({"other": PERFECT}, facts)


@pytest.mark.parametrize(
    ("figures", "facts", "remedy"),
    [
        (PERFECT, FACTS, "harder prompts"),
        (EQUAL, FACTS, "--temperature"),
        (SILENT, replace(FACTS, template_unused=True), "--chat-template on"),
        (SILENT, replace(FACTS, uses_template=True), "--system"),
        (SILENT, FACTS, "learned the task from examples (--model)"),
        (replace(SILENT, truncated_share=0.6), FACTS, "--max-new-tokens 256,"),
        (CUT, FACTS, "--max-new-tokens 256,"),
        (CUT, replace(FACTS, room=100), "--max-new-tokens 100,"),
        (CUT, replace(FACTS, room=None), "--max-new-tokens 256,"),
        (CUT, replace(FACTS, room=64), "no room"),
        (CUT, replace(FACTS, template_unused=True), "--chat-template on"),
        (UNSCORED, replace(FACTS, template_unused=True), "Import packages at the top of its file"),
        (replace(UNSCORED, failures=("error: KeyError: 'b'",)), FACTS, "Correct the scorer"),
        (replace(UNSCORED, failures=("value: None",)), FACTS, "a list of one finite number"),
    ],
)
def test_a_run_that_cannot_learn_is_refused_with_the_remedy_that_fits(
    figures: object, facts: ProbeFacts, remedy: str
) -> None:
    with pytest.raises(ConfigError, match="could not learn: in a probe of 32 groups of sums") as caught:
        judge({"sums": figures}, facts)  # type: ignore[dict-item]
    assert remedy in caught.value.remedy
    assert "--force" in caught.value.remedy


def test_one_task_with_a_signal_is_enough() -> None:
    (notice,) = judge({"sums": SILENT, "walk": GOOD}, FACTS)
    assert notice.startswith(f"sums: {Fault.NO_REWARD}")
    assert judge({"walk": GOOD}, FACTS) == []
    assert judge({}, FACTS) == []


def test_weak_signals_and_many_cut_off_are_told() -> None:
    weak = figures_of([(1.0, 0.0)] + [(0.0, 0.0)] * 31, [60] * 64, 32)
    signal, cut = judge({"sums": weak}, FACTS)
    assert "only 3%" in signal
    assert "50% of the completions were cut off" in cut
    assert judge({"sums": replace(GOOD, signal_share=0.05, truncated_share=0.49)}, FACTS) == []


def test_figures() -> None:
    figures = figures_of([(1.0, 0.0), (0.5, 0.5)], [3, 5, 7, 9], 1)
    assert (figures.groups, figures.group_size) == (2, 2)
    assert (figures.reward_mean, figures.signal_share) == (0.5, 0.5)
    assert (figures.reward_low, figures.reward_high) == (0.0, 1.0)
    assert (figures.tokens_mean, figures.truncated_share) == (6.0, 0.25)
    assert "50% of 2 groups" in figures_text(figures)
    assert "failed" not in figures_text(figures)


def test_figures_tell_of_answers_without_a_score() -> None:
    figures = figures_of([(1.0, 0.0), (0.5, 0.5)], [3, 5, 7, 9], 1, ["timeout", "error: odd"])
    assert figures_text(figures).endswith(", the scorer failed on 50%: it took longer than the 2 s of an answer")


@pytest.mark.parametrize(
    ("failures", "seen"),
    [
        (["timeout"] * 2, "it took longer than the 2 s of an answer"),
        (["error: KeyError: 'solution'"] * 2, "KeyError: 'solution'"),
        (["value: None", "value: None", "timeout"], "it returned None"),
        (["value: nan"] * 2, "it returned nan"),
        (["value: a value of type str"] * 2, "it returned a value of type str"),
        (["memory"] * 2, "it needed more than the 512 MB of an answer"),
        (["ended"] * 2, "its process ended"),
        (["too long"] * 2, "the answer has too many characters to score"),
        (["row"] * 2, "the row has too many characters to score"),
    ],
)
def test_a_scorer_that_fails_on_everything_is_refused_with_its_own_error(failures: list[str], seen: str) -> None:
    figures = figures_of([(0.0,) * len(failures)], [64], 64, failures)
    with pytest.raises(ConfigError, match="in a probe of 1 group of sums, the scorer failed on every") as caught:
        judge({"sums": figures}, FACTS)
    assert str(caught.value).endswith(seen)
    assert seen in figures_text(figures)


def test_a_probe_too_small_for_a_verdict_says_so() -> None:
    few = figures_of([(0.0, 0.0)] * (FEWEST_GROUPS - 1), [1] * 14, 0)
    (notice,) = judge({"sums": few}, FACTS)
    assert notice == "sums: 7 groups cannot show whether the run can learn: 8 can."
