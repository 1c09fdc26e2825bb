"""Watch of a run's groups: each trouble is reported when it begins and when it ends, and never in between."""

from __future__ import annotations

import pytest

from p2prl.learner.training.learning_watch import SUMMARY, WINDOW_GROUPS, GroupSignal, LearningWatch, Trouble

MIXED = GroupSignal((1.0, 0.0), 0)
ZERO = GroupSignal((0.0, 0.0), 0)
EQUAL = GroupSignal((1.0, 1.0), 0)
CUT = GroupSignal((1.0, 0.0), 2)


def feed(watch: LearningWatch, group: GroupSignal, count: int, **failures: int) -> list[str]:
    return [message for _ in range(count) for message in watch.observe([group], **failures)]


@pytest.mark.parametrize(
    ("group", "trouble", "remedy"),
    [
        (ZERO, Trouble.NO_REWARD, "chat template"),
        (EQUAL, Trouble.NO_SIGNAL, "--group-size"),
        (CUT, Trouble.ALL_TRUNCATED, "--max-new-tokens"),
    ],
)
def test_a_full_window_warns_once(group: GroupSignal, trouble: Trouble, remedy: str) -> None:
    watch = LearningWatch()
    assert feed(watch, group, WINDOW_GROUPS - 1) == []
    (message,) = feed(watch, group, 1)
    assert message.startswith(SUMMARY[trouble])
    assert remedy in message
    assert watch.figures["signal/warnings"] == [trouble]
    assert feed(watch, group, 3 * WINDOW_GROUPS) == []


def test_it_ends_with_the_first_other_group_and_begins_again_a_window_later() -> None:
    watch = LearningWatch()
    feed(watch, ZERO, WINDOW_GROUPS)
    assert feed(watch, MIXED, 1) == [f"no longer so: {SUMMARY[Trouble.NO_REWARD]}"]
    assert watch.figures["signal/warnings"] == []
    assert feed(watch, ZERO, WINDOW_GROUPS - 1) == []
    assert len(feed(watch, ZERO, 1)) == 1


def test_one_trouble_may_follow_another() -> None:
    watch = LearningWatch()
    feed(watch, ZERO, WINDOW_GROUPS)
    began, ended = feed(watch, EQUAL, 1)
    assert began.startswith(SUMMARY[Trouble.NO_SIGNAL])
    assert SUMMARY[Trouble.NO_REWARD] in ended


def test_one_differing_group_or_whole_completion_in_a_window_is_enough() -> None:
    watch = LearningWatch()
    assert feed(watch, EQUAL, WINDOW_GROUPS - 1) + feed(watch, MIXED, 1) == []
    watch = LearningWatch()
    assert feed(watch, CUT, WINDOW_GROUPS - 1) + feed(watch, GroupSignal((1.0, 0.0), 1), 1) == []
    assert watch.figures["signal/truncated_share"] == pytest.approx(1 - 1 / (2 * WINDOW_GROUPS))


def test_negative_rewards_are_rewards() -> None:
    watch = LearningWatch()
    feed(watch, GroupSignal((-1.0, -1.0), 0), WINDOW_GROUPS)
    assert watch.figures["signal/warnings"] == [Trouble.NO_SIGNAL]


@pytest.mark.parametrize(("each", "warned"), [(0, False), (1, True), (2, True)])
def test_scorers_that_fail_on_half_of_the_answers(each: int, warned: bool) -> None:
    """Groups have two answers; `each` of them fails. What failed before the window does not count."""
    watch, failures, told = LearningWatch(), 1_000_000, list[str]()
    feed(watch, MIXED, WINDOW_GROUPS, scorer_failures=failures)
    told.clear()
    for _ in range(2 * WINDOW_GROUPS):
        failures += each
        told += watch.observe([MIXED], scorer_failures=failures)
    assert (Trouble.SCORER_FAILS in watch.figures["signal/warnings"]) is warned  # type: ignore[operator]
    if not warned:
        assert told == [f"no longer so: {SUMMARY[Trouble.SCORER_FAILS]}"]


def test_figures() -> None:
    watch = LearningWatch()
    assert watch.figures == {}
    watch.observe([MIXED, ZERO, CUT, ZERO])
    assert watch.figures == {"signal/groups_share": 0.5, "signal/truncated_share": 0.25, "signal/warnings": []}
