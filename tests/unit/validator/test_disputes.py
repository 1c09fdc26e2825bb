"""Groups kept for disputes: bounded in bytes, and in replays that others can ask for."""

from __future__ import annotations

import pytest

from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.ledger_messages import CheckOutcome, VerdictCheck
from p2prl.testing.protocol_swarm import group_of
from p2prl.validator.disputes import Disputes
from tests.unit.learner.small_run import NOW, identity

ME, OTHER = identity("me").public_key, identity("other").public_key


def group(slot: int) -> Opened:
    return open_envelope(seal(identity("volunteer"), group_of(slot), run=bytes(32), now=NOW), now=None)


def disputed(*groups: Opened) -> tuple[VerdictCheck, ...]:
    return tuple(VerdictCheck(OTHER, each.digest, int(CheckOutcome.CONTRADICTED), 9) for each in groups)


def test_the_oldest_groups_make_way(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [group(slot) for slot in range(4)]
    monkeypatch.setattr("p2prl.validator.disputes._RECENT_BYTES", sum(len(each.raw) for each in groups[1:]))
    disputes = Disputes(ME)
    for each in (*groups, groups[3]):
        disputes.keep(each)
    assert list(disputes.groups_to_replay(disputed(*groups), NOW)) == groups[1:]
    assert list(disputes.groups_to_replay(disputed(*groups), NOW)) == [], "once"


def test_replays_for_disputes_have_a_budget_that_comes_back() -> None:
    disputes = Disputes(ME)
    groups = [group(slot) for slot in range(40)]
    for each in groups:
        disputes.keep(each)
    assert len(list(disputes.groups_to_replay(disputed(*groups), NOW))) == 16
    assert len(list(disputes.groups_to_replay(disputed(*groups), NOW + 80))) == 10
