"""Floods of questions: honest peers get their chunks all the time, and newcomers their first answers."""

from __future__ import annotations

import pytest

from p2prl.swarm.answer_budget import AnswerBudget
from p2prl_lab.bench.trust.starvation import StarvationPlan, answered_after_s, starved_row


@pytest.mark.parametrize(("upload_mbit", "addresses"), [(1.0, 1), (1.0, 16), (5.0, 16)])
def test_questions_leave_the_uplink_to_weights(upload_mbit: float, addresses: int) -> None:
    row = starved_row(
        StarvationPlan(upload_mbit=upload_mbit, addresses=addresses, begins_s=10.0, lasts_s=30.0, after_s=20.0)
    )
    assert row.honest_share_during >= 0.8
    assert row.honest_share_after >= 0.98


def test_without_a_budget_of_answers_the_questions_take_the_uplink(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation shows the harm that the rows above are free of."""
    monkeypatch.setattr(AnswerBudget, "room", lambda *_, **__: 2**30)
    monkeypatch.setattr(AnswerBudget, "take", lambda *_, **__: True)
    row = starved_row(StarvationPlan(upload_mbit=1.0, begins_s=10.0, lasts_s=10.0, recovery_s=1.0, after_s=1.0))
    assert row.honest_share_during < 0.2


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("addresses", [1, 16])
def test_newcomers_are_answered_at_once_amid_a_flood(addresses: int, restarts: bool) -> None:
    plan = StarvationPlan(upload_mbit=1.0, addresses=addresses, begins_s=1.0, lasts_s=40.0)
    assert max(answered_after_s(plan, restarts=restarts, patience_s=5.0)) <= 1.0
