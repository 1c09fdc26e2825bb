"""A survey of a task's prompts: many seeds, within a bounded time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from p2prl.config.prompt_lengths import PromptLengths, survey_prompts
from p2prl.tasks.task import FAILED, Score


class Counting:
    """A task that counts its prompts; each takes some seconds of a clock."""

    name = "counting"

    def __init__(self, *, seconds: float = 0.0, digits: int = 5) -> None:
        self.time = 0.0
        self.seconds = seconds
        self.digits = digits
        self.seeds: list[int] = []

    def prompt(self, seed: int) -> str:
        self.time += self.seconds
        self.seeds.append(seed)
        return "7" * (self.digits + seed % 3)

    def score(self, prompt: str, completion: str, finished: bool) -> Score:
        return FAILED

    def now(self) -> float:
        return self.time


def characters(texts: list[str]) -> Sequence[str]:
    return texts


def test_thousands_of_seeds_out_of_all_are_measured() -> None:
    task = Counting()
    assert survey_prompts([task], characters, clock=task) == PromptLengths(4096, 5, 7)
    assert len(set(task.seeds)) == 4096
    assert min(task.seeds) < 1 << 56
    assert 1 << 62 < max(task.seeds) < 1 << 63


@pytest.mark.parametrize(("seconds", "measured"), [(0.004, 256), (9.0, 32)])
def test_slow_tasks_are_measured_less(seconds: float, measured: int) -> None:
    task = Counting(seconds=seconds)
    assert survey_prompts([task], characters, clock=task).prompts == measured


def test_every_task_is_measured() -> None:
    first, second = Counting(seconds=0.004), Counting(digits=30)
    lengths = survey_prompts([first, second], characters, clock=first)
    assert (lengths.shortest, lengths.longest, lengths.prompts) == (5, 32, len(first.seeds) + len(second.seeds))
    assert lengths.expected == 32 + 27 // 8
