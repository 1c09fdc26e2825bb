"""Slot prices in a learner: voided groups earn nothing and are not trained on, and a kill changes no account."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from p2prl.learner.intake import slot_prices
from p2prl.learner.intake.admission import Outcome
from p2prl.learner.intake.slot_accounts import FREE_AT_START, MAX_DEBT, SLOTS_PER_FREE_LOSS, SlotAccount
from p2prl.learner.intake.slot_prices import SlotPrices
from p2prl.learner.journal.groups import GroupState
from p2prl.learner.journal.journal import Journal
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.service import Learner
from p2prl.learner.timing.next_update import Action
from p2prl.protocol.envelope import seal
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.wire_codec import decode, encode
from tests.unit.learner.scripted_swarm import PEERS, ScriptedSwarm, fresh_runs, make_learner
from tests.unit.learner.small_run import NOW, SmallRun, altered, identity

ONE, TWO = (peer.public_key for peer in PEERS)
SECRET = bytes(range(32))


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:
        yield make


def account_in(journal: Journal, peer: bytes) -> SlotAccount:
    encoded = journal.slot_accounts.read(peer)
    assert encoded is not None
    return decode(encoded, SlotAccount, limit_bytes=1 << 20)


def receipts_of(swarm: ScriptedSwarm) -> dict[tuple[bytes, int], str]:
    return {(r.peer, r.slot): r.reason for body in swarm.port.bodies(Kind.RECEIPTS) for r in body.receipts}


def learner_of_one(small_run: SmallRun) -> Learner:
    return make_learner(small_run, groups_per_update=1)


def run(small_run: SmallRun, *, restart_at: int | None = None) -> tuple[dict[tuple[bytes, int], str], SlotAccount]:
    """A run in which the first peer owes as much as it can: every receipt, and its account at the end."""
    journal = Journal(LearnerPaths(small_run.directory).journal)
    with journal.transaction():
        journal.slot_accounts.write(ONE, encode(SlotAccount(0, -1, savings=0, debt=MAX_DEBT)))
    journal.close()
    swarm = ScriptedSwarm(small_run, lambda: learner_of_one(small_run))
    for number in range(60):
        if number == restart_at:
            swarm.restart()
        if swarm.turn() is Action.FINISH:
            break
    while swarm.learner._checks.settle_next(step=swarm.learner.step):
        pass
    storage = swarm.learner._storage
    used = {peer for (peer,) in storage.journal._db.execute("SELECT peer FROM groups WHERE state = 'used'")}
    assert used == {TWO}
    found = receipts_of(swarm), replace(account_in(storage.journal, ONE), heard=0.0)  # a restart takes time
    swarm.learner.close()
    return found


def test_groups_that_pay_for_lost_slots_are_voided(fresh: Callable[[str], SmallRun]) -> None:
    receipts, account = run(fresh("straight"))
    assert {reason for (peer, _), reason in receipts.items() if peer == TWO} == {""}
    mine = [reason for (peer, _), reason in receipts.items() if peer == ONE]
    assert set(mine) == {"withheld_slots"}
    assert account.debt == MAX_DEBT - len(mine)
    assert (account.next_slot, account.lost) == (len(mine), 0)
    assert run(fresh("killed"), restart_at=6) == (receipts, account)


def test_a_forged_group_loses_its_slot(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    swarm = ScriptedSwarm(small_run)
    while not swarm.sampled:
        swarm.turn()
    policy = small_run.published.at(0)
    assert policy is not None
    wrong = altered(small_run.group(policy, identity("liar"), 1), slot=0)
    swarm.deliver(seal(identity("liar"), wrong, run=small_run.run, now=NOW))
    while not any(peer == identity("liar").public_key for peer, _ in receipts_of(swarm)):
        swarm.turn()
    account = account_in(swarm.learner._storage.journal, identity("liar").public_key)
    assert (account.lost, account.next_slot) == (1, 1)
    swarm.learner.close()


def test_one_slot_is_used_once_under_whatever_version(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    swarm = ScriptedSwarm(small_run)
    while len(swarm.sampled) < 2:
        swarm.turn()
    newer = small_run.published.at(1)
    assert newer is not None
    again = seal(PEERS[0], small_run.group(newer, PEERS[0], 0), run=small_run.run, now=NOW)
    swarm.deliver(again)
    while swarm.turn() is not Action.FINISH:
        pass
    while swarm.learner._checks.settle_next(step=swarm.learner.step):
        pass
    reasons = [
        r.reason for body in swarm.port.bodies(Kind.RECEIPTS) for r in body.receipts if (r.peer, r.slot) == (ONE, 0)
    ]
    assert sorted(reasons) == ["", "duplicate_slot"]
    swarm.learner.close()


def stored_slot(small_run: SmallRun, prices: SlotPrices, slot: int) -> str:
    """Store a group as the intake does."""
    policy = small_run.published.newest
    assert policy is not None
    group = small_run.sealed(small_run.group(policy, PEERS[0], slot), PEERS[0])
    with small_run.journal.transaction():
        reason = prices.arrived(ONE, slot, group.version, stale=False, now=NOW)
        small_run.journal.groups.store(group, NOW)
    return reason


def test_groups_are_marked_on_arrival(tmp_path: Path) -> None:
    small_run = SmallRun(tmp_path)
    small_run.publish(0, step=0)
    prices = SlotPrices(small_run.journal, secret=SECRET)
    assert prices.has_room(ONE, 500, now=NOW)
    assert stored_slot(small_run, prices, 500) == ""
    assert stored_slot(small_run, prices, 500) == "duplicate_slot"
    prices.write({ONE: SlotAccount(501, 0)})  # the slots below were counted as lost
    assert stored_slot(small_run, prices, 7) == "withheld_slots"
    (group,) = [g for g in small_run.journal.groups.in_state(GroupState.STORED, 9) if g.slot == 7]
    marked = small_run.sealed(small_run.group(small_run.published.all()[0], PEERS[0], 7), PEERS[0], now=NOW + 1)
    object.__setattr__(marked, "reason", "withheld_slots")
    small_run.store(marked)
    (outcome, honest) = small_run.check(*small_run.journal.groups.by_digest([marked.digest, group.digest]))
    assert (outcome.state, outcome.reason) == (ReceiptState.REJECTED, "withheld_slots")
    assert honest.state is ReceiptState.VERIFIED
    small_run.close()


def test_missing_slots_are_charged_to_the_owner_until_they_arrive(tmp_path: Path) -> None:
    small_run = SmallRun(tmp_path)
    small_run.publish(0, step=0)
    owner, journal = b"owner".ljust(32), small_run.journal

    def keyed(peer: bytes) -> bytes:
        return owner if peer in (ONE, TWO) else peer

    saved = SlotAccount(0, -1, savings=(FREE_AT_START + 8) * SLOTS_PER_FREE_LOSS, heard=NOW)
    with journal.transaction():
        journal.slot_accounts.write(ONE, encode(saved))
    prices = SlotPrices(journal, secret=SECRET, identity_of=keyed)
    for slot in (0, 2, 9):
        assert prices.has_room(ONE, slot, now=NOW)
        assert stored_slot(small_run, prices, slot) == ""
    assert prices.charged(owner) == SlotPrices(journal, secret=SECRET, identity_of=keyed).charged(owner) == 1 + 4
    assert prices.charged(ONE) == 0
    assert not prices.has_room(ONE, 20, now=NOW), "a delegate has what it saved itself"
    assert SlotPrices(journal, secret=SECRET).has_room(ONE, 20, now=NOW)
    for slot in (1, *range(3, 9)):
        assert stored_slot(small_run, prices, slot) == ""
    assert prices.charged(owner) == 0
    small_run.close()


def test_what_is_remembered_of_peers_with_missing_slots_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_prices, "MAX_CHARGED", 2)
    small_run = SmallRun(tmp_path)
    prices = SlotPrices(small_run.journal, secret=SECRET)
    peers = [bytes([number]) * 32 for number in range(3)]
    with small_run.journal.transaction():
        for peer in peers:
            prices.arrived(peer, 0, 0, stale=False, now=NOW)
            prices.arrived(peer, 2, 0, stale=False, now=NOW)
    assert [prices.charged(peer) for peer in peers] == [0, 1, 1]
    small_run.close()


def test_debts_are_paid_within_one_batch(tmp_path: Path) -> None:
    small_run = SmallRun(tmp_path)
    policy = small_run.publish(0, step=0)
    prices = SlotPrices(small_run.journal, secret=SECRET)
    with small_run.journal.transaction():
        prices.write({ONE: SlotAccount(90, 0, savings=0, debt=3)})
    group = small_run.group(policy, PEERS[0], 0)
    stored = [
        Outcome(small_run.sealed(group, PEERS[0]), group, ReceiptState.VERIFIED, "", policy, rewards=(1.0,))
        for _ in range(40)
    ]
    for slot, outcome in enumerate(stored):
        object.__setattr__(outcome.stored, "slot", slot)
    priced, accounts = prices.price(stored)
    voided = [outcome for outcome in priced if outcome.reason]
    assert len(voided) == 3
    assert {(o.state, o.reason, o.rewards) for o in voided} == {(ReceiptState.REJECTED, "withheld_slots", ())}
    assert accounts[ONE].debt == 0
    assert account_in(small_run.journal, ONE).debt == 3, "written with the receipts"
    assert prices.price(stored)[0] == priced, "the same again"
    small_run.close()
