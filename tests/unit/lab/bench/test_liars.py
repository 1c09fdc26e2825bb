"""Learners that reject honest work, in a simulated run: a victim stops soon, and the others go on."""

from __future__ import annotations

from p2prl.client.refusal_judgement import STOPPED_AT
from p2prl.exit_codes import WORK_REFUSED
from p2prl_lab.bench.trust.liars import liar_row


def test_a_single_victim_replays_its_own_groups_and_leaves_while_others_are_credited() -> None:
    row = liar_row("rejects one victim", seed=0)
    assert (row.credited, row.exit_code) == (0, WORK_REFUSED)
    assert 0 < row.rejected < STOPPED_AT, "its replays settled it before it had to give up"
    assert row.sampled <= row.rejected + 4, "what was in flight is all that it gives away besides"
    assert row.others_credited > 0
