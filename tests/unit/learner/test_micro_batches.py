"""Micro-batches: every row once, within the budget, full from the longest; and their rules on disk."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import MachineError
from p2prl.learner.training.memory_plan import MemoryPlan
from p2prl.learner.training.micro_batch_log import DEFAULT_RULE, MicroBatchLog
from p2prl.learner.training.micro_batches import MicroBatchRule, micro_batches


@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_every_row_is_in_one_part_within_the_budget(lengths: list[int], tokens: int) -> None:
    parts = micro_batches(lengths, tokens=tokens)
    assert sorted(row for part in parts for row in part) == list(range(len(lengths)))
    for part in parts:
        assert len(part) == 1 or len(part) * max(lengths[row] for row in part) <= tokens
    longest_first = [lengths[row] for part in reversed(parts) for row in part]
    assert longest_first == sorted(lengths, reverse=True)
    for later, earlier in pairwise(parts):  # no part had room for the next row
        assert (len(earlier) + 1) * lengths[earlier[0]] > tokens
        assert lengths[later[0]] <= lengths[earlier[-1]]


def test_rows_of_equal_length_keep_their_order() -> None:
    assert micro_batches([5, 5, 7, 5], tokens=10) == [[3], [0, 1], [2]]
    assert micro_batches([], tokens=10) == []


def test_half_a_rule_is_half_of_what_was_used() -> None:
    assert MicroBatchRule(tokens=1000).halved(used=300) == MicroBatchRule(tokens=150)
    assert MicroBatchRule(tokens=100, checkpointing=True).halved(used=300) == MicroBatchRule(
        tokens=50, checkpointing=True
    )
    assert MicroBatchRule(tokens=1).halved(used=1).tokens == 1


def rule(tokens: int) -> MicroBatchRule:
    return MicroBatchRule(tokens=tokens)


def plan(tokens: int, *, most: int | None = None, asks_tokens: bool = False) -> MemoryPlan:
    return MemoryPlan(rule=rule(tokens), most_tokens=most or tokens, asks_tokens=asks_tokens)


def test_rules_by_step_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "micro-batches.jsonl"
    log = MicroBatchLog(path)
    assert log.at(0) == DEFAULT_RULE
    log.change(rule(400), from_step=0)
    log.change(rule(200), from_step=7)
    for each in (log, MicroBatchLog(path)):
        assert [each.at(step).tokens for step in (0, 6, 7, 100)] == [400, 400, 200, 200]
    log.change(rule(100), from_step=3)  # a replay that ran out of memory earlier replaces what followed
    assert [MicroBatchLog(path).at(step).tokens for step in (2, 3, 7)] == [400, 100, 100]
    first = {"from_step": 0, "tokens": 400, "checkpointing": False, "plan": "1"}
    assert json.loads(path.read_text().splitlines()[0]) == first
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_a_run_keeps_its_rule_while_it_fits(tmp_path: Path) -> None:
    path = tmp_path / "log"
    MicroBatchLog(path).begin(plan(500), checkpoint_step=0)
    again = MicroBatchLog(path)
    again.begin(plan(2000, most=9000), checkpoint_step=10, completed=14)
    assert again.at(20).tokens == 500
    again.begin(plan(300, most=499), checkpoint_step=10)
    assert [again.at(step).tokens for step in (9, 10, 20)] == [500, 300, 300]


def test_a_rule_of_the_settings_starts_after_the_completed_steps(tmp_path: Path) -> None:
    log = MicroBatchLog(tmp_path / "log")
    log.begin(plan(500), checkpoint_step=0)
    log.begin(plan(300, most=900, asks_tokens=True), checkpoint_step=10, completed=14)
    assert [log.at(step).tokens for step in (12, 13, 14)] == [500, 500, 300]


def test_another_plan_of_ranks_holds_from_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "micro-batches.jsonl"
    steps = {0: 400, 8: 200}  # as a release before ranks wrote them
    lines = [{"from_step": step, "tokens": tokens, "checkpointing": False} for step, tokens in steps.items()]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    log = MicroBatchLog(path)
    assert log.begin(replace(plan(400), rule=replace(rule(400), plan="dp2")), checkpoint_step=5, completed=9)
    for each in (log, MicroBatchLog(path)):
        assert [each.at(step).plan for step in (4, 5, 9)] == ["1", "dp2", "dp2"]
        assert [each.at(step).tokens for step in (4, 5, 9)] == [400, 200, 200], "what ran out of memory stays"
    assert not log.begin(replace(plan(400), rule=replace(rule(400), plan="dp2")), checkpoint_step=5, completed=9)
    assert log.begin(plan(400), checkpoint_step=9, completed=9)
    assert log.at(9).plan == "1"


def test_a_rule_that_cannot_be_written_is_not_used_silently(tmp_path: Path) -> None:
    log = MicroBatchLog(tmp_path / "absent" / "log")
    with pytest.raises(MachineError):
        log.change(rule(100), from_step=0)


def test_a_rule_fits_by_what_it_needs_itself() -> None:
    checkpointed = MicroBatchRule(tokens=500, checkpointing=True)
    roomy = MemoryPlan(rule=rule(9), most_tokens=300, most_tokens_checkpointed=500)
    assert [roomy.allows(each) for each in (rule(300), rule(301), checkpointed)] == [True, False, True]
    assert not MemoryPlan(rule=rule(9), most_tokens=300, most_tokens_checkpointed=499).allows(checkpointed)


def test_checkpointing_asked_for_holds_from_the_step_that_ran_out_of_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    MicroBatchLog(path).begin(plan(500), checkpoint_step=0)
    asked = MemoryPlan(rule=MicroBatchRule(tokens=900, checkpointing=True), most_tokens=500, asks_checkpointing=True)
    log = MicroBatchLog(path)
    log.begin(asked, checkpoint_step=10, completed=13)
    assert [log.at(step) for step in (10, 12, 13, 20)] == [rule(500), rule(500), asked.rule, asked.rule]
    smaller = MemoryPlan(rule=MicroBatchRule(tokens=800, checkpointing=True), most_tokens=900, asks_checkpointing=True)
    log.begin(smaller, checkpoint_step=20, completed=23)
    assert log.at(30) == asked.rule, "another size that was not asked for changes nothing"
    back = MemoryPlan(rule=rule(200), most_tokens=900, most_tokens_checkpointed=900, asks_checkpointing=True)
    log.begin(back, checkpoint_step=20, completed=13)
    assert [log.at(step) for step in (19, 20)] == [asked.rule, rule(200)], "not before the newest checkpoint"
