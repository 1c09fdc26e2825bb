"""Delivery: redelivery in portions, the learner's backlog, and the wait after the end of the run."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.client.delivery import Delivery
from p2prl.client.spool import Spool, SpoolConfig
from p2prl.net.process import control
from p2prl.protocol import ledger_chain
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState, StorageReceipt
from p2prl.swarm import signals
from p2prl_lab.testing.sample_ledgers import LedgerWriter, identity, sample_run, verdict_on
from p2prl_lab.testing.sample_ledgers import receipt as some_receipt

NOW = 1_800_000_000.0
AUTHOR, RUN = b"a" * 32, Digest(bytes(32))


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    made = Spool(tmp_path / "spool.db", SpoolConfig())
    yield made
    made.close()


def delivery(spool: Spool, rejected: list[Receipt] | None = None) -> Delivery:
    report = [] if rejected is None else rejected

    def note(receipt: Receipt, _: bytes) -> None:
        if receipt.reason:
            report.append(receipt)

    return Delivery(spool, author=AUTHOR, run=RUN, redeliver_s=5.0, on_judged=note)


def raw_group(slot: int) -> bytes:
    return b"group %d" % slot


def name(slot: int) -> Digest:
    return envelope_digest(raw_group(slot))


def add(spool: Spool, *slots: int, now: float = NOW) -> None:
    for slot in slots:
        spool.add(name(slot), raw_group(slot), version=0, slot=slot, tokens=1, reward=0.0, now=now)


def published(messages: list[control.ToNetwork]) -> list[bytes]:
    return [message.envelope for message in messages if isinstance(message, signals.Publish)]


def receipt(slot: int, state: ReceiptState = ReceiptState.VERIFIED, reason: str = "", peer: bytes = AUTHOR) -> Receipt:
    return Receipt(name(slot), peer, 0, slot, int(state), reason, 1, 1, 0.0)


def test_nothing_is_sent_again_without_a_learner(spool: Spool) -> None:
    subject = delivery(spool)
    add(spool, 0)
    assert subject.due(NOW + 60, run_known=True) == []
    subject.set_links({"learner": 1})
    assert published(subject.due(NOW + 60, run_known=True)) == [b"group 0"]
    assert subject.due(NOW + 61, run_known=True) == [], "not before the next period"
    assert published(subject.due(NOW + 66, run_known=True)) == [b"group 0"]


def test_a_long_backlog_is_sent_in_portions_as_receipts_arrive(spool: Spool) -> None:
    subject = delivery(spool)
    subject.set_links({"learner": 1})
    add(spool, *range(40))
    now, sent = NOW + 60, 0
    for portion in (16, 16, 8):
        messages = published(subject.due(now, run_known=True))
        assert len(messages) == portion
        stored = tuple(name(slot) for slot in range(sent, sent + portion))
        subject.on_storage_receipt(StorageReceipt(stored))
        assert published(subject.due(now, run_known=True)) == [], "the learner holds as many as it may"
        subject.on_receipts(Receipts(0, tuple(receipt(slot) for slot in range(sent, sent + portion))), 0, b"")
        sent += portion
    assert spool.counts() == {"verified": 40}


def test_groups_of_an_outage_are_sent_although_the_learner_holds_fresh_ones(spool: Spool) -> None:
    """It lacks slots of ours, so it serves us last: behind what it serves last, they would never get there."""
    subject = delivery(spool)
    subject.set_links({"learner": 1})
    add(spool, *range(40))
    add(spool, *range(40, 70), now=NOW + 59)
    subject.on_storage_receipt(StorageReceipt(tuple(map(name, range(40, 70)))))
    assert subject.backlog(NOW + 60) == 30
    assert published(subject.due(NOW + 60, run_known=True)) == [raw_group(slot) for slot in range(16)]
    subject.on_storage_receipt(StorageReceipt(tuple(map(name, range(16)))))
    assert published(subject.due(NOW + 60, run_known=True)) == [], "it holds as many old ones as it may"
    assert subject.backlog(NOW + 60) == 30, "fresh ones need not wait for old ones"
    subject.on_receipts(Receipts(0, (receipt(3), receipt(41))), 0, b"")
    assert published(subject.due(NOW + 60, run_known=True)) == [raw_group(16)]
    assert subject.backlog(NOW + 60) == 29


def test_receipts_of_fresh_groups_send_no_old_one_again(spool: Spool) -> None:
    subject = delivery(spool)
    subject.set_links({"learner": 1})
    add(spool, *range(40))
    assert len(published(subject.due(NOW + 60, run_known=True))) == 16
    add(spool, *range(40, 80), now=NOW + 59)
    for slot in range(40, 80):
        subject.on_storage_receipt(StorageReceipt((name(slot),)))
        assert published(subject.due(NOW + 60, run_known=True)) == []
    assert len(published(subject.due(NOW + 66, run_known=True))) == 16


def test_a_group_that_is_judged_without_a_storage_receipt_makes_room(spool: Spool) -> None:
    subject = delivery(spool)
    subject.set_links({"learner": 1})
    add(spool, *range(40))
    subject.due(NOW + 60, run_known=True)
    subject.on_receipts(Receipts(0, tuple(map(receipt, range(16)))), 0, b"")
    assert published(subject.due(NOW + 60, run_known=True)) == [raw_group(slot) for slot in range(16, 32)]


def test_a_restart_sends_no_more_old_groups_than_the_learner_may_hold(spool: Spool) -> None:
    add(spool, *range(60))
    for _ in range(3):
        subject = delivery(spool)
        subject.set_links({"learner": 1})
        subject.due(NOW + 60, run_known=True)
        subject.on_storage_receipt(StorageReceipt(tuple(map(name, range(16)))))
        assert subject.backlog(NOW + 60) == 0
        assert published(subject.due(NOW + 60, run_known=True)) == []
    assert spool.counts() == {"delivered": 16, "generated": 44}


def test_groups_that_are_never_stored_hold_up_no_others(spool: Spool) -> None:
    subject = delivery(spool)
    subject.set_links({"learner": 1})
    add(spool, *range(120))
    never = set(range(20)) | {77}
    for turn in range(40):
        sent = [int(raw.split()[1]) for raw in published(subject.due(NOW + 60 + 5 * turn, run_known=True))]
        assert len(sent) <= 16
        taken = [slot for slot in sent if slot not in never]
        subject.on_storage_receipt(StorageReceipt(tuple(map(name, taken))))
        subject.on_receipts(Receipts(0, tuple(map(receipt, taken))), 0, b"")
    assert spool.counts() == {"verified": 120 - len(never), "generated": len(never)}
    again = {raw for turn in range(8) for raw in published(subject.due(NOW + 300 + 5 * turn, run_known=True))}
    assert again == set(map(raw_group, never)), "they may be stored yet"


def test_storage_receipts_that_are_late_count(spool: Spool) -> None:
    """The learner holds what it stored after the next redelivery too."""
    subject = delivery(spool)
    subject.set_links({"learner": 1})
    add(spool, *range(120))
    unanswered = (published(subject.due(NOW + 60 + 5 * turn, run_known=True)) for turn in range(8))
    sent = {raw for portion in unanswered for raw in portion}
    assert len(sent) == 32, "twice as many in 40 s"
    subject.on_storage_receipt(StorageReceipt(tuple(map(envelope_digest, sent))))
    assert published(subject.due(NOW + 105, run_known=True)) == []
    assert subject.backlog(NOW + 105) == 0, "fresh ones do not wait for them"
    subject.on_receipts(Receipts(0, tuple(map(receipt, range(20)))), 0, b"")
    assert len(published(subject.due(NOW + 110, run_known=True))) == 4


def test_a_learner_that_comes_back_gets_groups_at_once(spool: Spool) -> None:
    subject = delivery(spool)
    subject.set_links({"learner": 1})
    add(spool, 0)
    assert len(subject.due(NOW + 60, run_known=True)) == 1
    subject.set_links({"learner": 1})
    assert subject.due(NOW + 61, run_known=True) == []
    subject.set_links({"volunteer": 2})
    subject.set_links({"learner": 1})
    assert len(subject.due(NOW + 61, run_known=True)) == 1


def ms(now: float) -> int:
    return int(now * 1000)


def test_a_learner_that_is_heard_over_others_gets_groups_again_and_its_ledger_is_read(spool: Spool) -> None:
    subject = delivery(spool)
    add(spool, 0, 1)
    subject.on_storage_receipt(StorageReceipt((name(1),)))
    assert subject.due(NOW + 60, run_known=True) == []
    subject.hear_learner(ms(NOW + 59), NOW + 60)
    assert subject.due(NOW + 60, run_known=True) == [signals.Publish(b"group 0"), signals.AskLedger(0)]
    assert published(subject.due(NOW + 66, run_known=True)) == [b"group 0"]
    assert subject.learner_in_reach(NOW + 73)
    assert not subject.learner_in_reach(NOW + 74)
    assert subject.due(NOW + 120, run_known=True) == []
    subject.hear_learner(ms(NOW + 120), NOW + 120)
    assert published(subject.due(NOW + 120, run_known=True)) == [b"group 0"], "at once"


def test_what_a_learner_without_a_link_may_have_judged_is_looked_up_in_the_ledger(spool: Spool) -> None:
    subject = delivery(spool)
    add(spool, 0)
    subject.hear_learner(ms(NOW + 60), NOW + 60)
    assert subject.due(NOW + 60, run_known=True) == [signals.Publish(b"group 0"), signals.AskLedger(0)]
    subject.on_storage_receipt(StorageReceipt((name(0),)))
    subject.on_receipts(Receipts(0, (receipt(0),)), 0, b"")
    assert subject.due(NOW + 71, run_known=True) == []


def test_an_old_receipt_or_one_from_times_to_come_brings_no_learner_into_reach(spool: Spool) -> None:
    subject = delivery(spool)
    subject.hear_learner(ms(NOW - 15), NOW)
    assert not subject.learner_in_reach(NOW)
    subject.hear_learner(ms(NOW + 1_000), NOW)
    assert subject.learner_in_reach(NOW + 14)
    assert not subject.learner_in_reach(NOW + 15)


def test_what_a_linked_learner_said_does_not_keep_it_in_reach_when_its_link_is_lost(spool: Spool) -> None:
    subject = delivery(spool)
    subject.hear_learner(ms(NOW), NOW)
    subject.set_links({"learner": 1})
    subject.hear_learner(ms(NOW + 1), NOW + 1)
    subject.set_links({"volunteer": 2})
    assert not subject.learner_in_reach(NOW + 1), "a volunteer never waits for a learner that is away"
    subject.hear_learner(ms(NOW + 2), NOW + 2)
    subject.set_links({"seeder": 1, "volunteer": 0})
    assert subject.learner_in_reach(NOW + 2)
    subject.set_links({"seeder": 0})
    assert not subject.learner_in_reach(NOW + 2), "nor for one that it has no way to"


def test_an_overdue_receipt_is_queried_from_the_ledger(spool: Spool) -> None:
    subject = delivery(spool)
    subject.set_links({"learner": 1})
    add(spool, 0)
    subject.on_storage_receipt(StorageReceipt((name(0),)))
    assert subject.due(NOW + 5, run_known=True) == []
    assert subject.due(NOW + 16, run_known=False) == []
    assert subject.due(NOW + 16, run_known=True) == [signals.AskLedger(0)]


def test_only_our_rejected_groups_are_reported(spool: Spool) -> None:
    rejected: list[Receipt] = []
    subject = delivery(spool, rejected)
    add(spool, 0, 1)
    ours = receipt(0, ReceiptState.REJECTED, "bad_tokens")
    others = receipt(1, ReceiptState.REJECTED, "bad_tokens", peer=b"b" * 32)
    subject.on_receipts(Receipts(0, (ours, others, ours)), 0, b"")
    assert rejected == [ours]
    assert spool.counts() == {"generated": 1, "rejected": 1}


def test_backlog_counts_groups_with_the_learner_and_fresh_ones(spool: Spool) -> None:
    subject = delivery(spool)
    add(spool, 0, 1, now=NOW - 60)
    add(spool, 2, now=NOW - 1)
    subject.on_storage_receipt(StorageReceipt((name(0),)))
    assert subject.backlog(NOW) == 2


def test_waits_for_the_last_receipts_and_longer_while_the_learner_holds_groups(spool: Spool) -> None:
    subject = delivery(spool)
    assert not subject.is_over(NOW, run_ended=False)
    assert subject.is_over(NOW, run_ended=True), "nothing to wait for"
    add(spool, 0, 1)
    assert not subject.is_over(NOW, run_ended=True)
    assert subject.is_over(NOW + 6, run_ended=True)
    subject.set_links({"learner": 1})
    subject.on_storage_receipt(StorageReceipt((name(0),)))
    assert not subject.is_over(NOW + 6, run_ended=True)
    subject.on_receipts(Receipts(0, (receipt(0),)), 0, b"")
    assert not subject.is_over(NOW + 7, run_ended=True), "the wait begins again with each receipt"
    assert subject.is_over(NOW + 13, run_ended=True)


LEDGER = sample_run(0, steps=10)
PAGE = 2


def reader(spool: Spool) -> Delivery:
    return Delivery(spool, author=AUTHOR, run=Digest(LEDGER.run), redeliver_s=5.0, on_judged=lambda *_: None)


def answer(subject: Delivery, spool: Spool, entries: list[bytes]) -> None:
    at, _ = spool.ledger_position
    subject.on_ledger(at, tuple(entries), learner=LEDGER.learner.public_key, now=NOW)


def false_page(rng: random.Random, spool: Spool) -> list[bytes]:
    """Entries of a stranger: some that follow, or one that does not."""
    at, head = spool.ledger_position
    envelope = LedgerWriter().add(identity("eve"), verdict_on(some_receipt(900 + at, identity("volunteer 0"))))
    if rng.random() < 0.5:
        head = Digest(bytes(31) + b"x")
    return [ledger_chain.append(at, head, envelope)[0]]


@pytest.mark.parametrize("seed", range(5))
def test_a_long_ledger_is_read_although_one_answer_in_three_is_false(spool: Spool, seed: int) -> None:
    subject, rng, end = reader(spool), random.Random(seed), len(LEDGER.entries)
    for _ in range(10 * end // PAGE):
        at, _ = spool.ledger_position
        if spool.ledger_position == (end, LEDGER.head):
            break
        is_false = rng.random() < 1 / 3
        answer(subject, spool, false_page(rng, spool) if is_false else LEDGER.entries[at : at + PAGE])
    assert spool.ledger_position == (end, LEDGER.head)


def test_a_false_page_that_was_read_before_a_restart_is_read_over(spool: Spool) -> None:
    answer(reader(spool), spool, LEDGER.entries[:PAGE])
    answer(reader(spool), spool, false_page(random.Random(1), spool))
    subject = reader(spool)
    for _ in range(len(LEDGER.entries)):
        at, _ = spool.ledger_position
        answer(subject, spool, LEDGER.entries[at : at + PAGE])
    assert spool.ledger_position == (len(LEDGER.entries), LEDGER.head)


def test_groups_sampled_in_times_to_come_are_delivered_now(spool: Spool) -> None:
    subject = delivery(spool)
    subject.set_links({"learner": 1})
    add(spool, 0, now=NOW + 30 * 86_400)
    add(spool, 1, now=NOW - 60)
    assert published(subject.due(NOW, run_known=True)) == [b"group 1"]
    spool.bound_times(NOW)
    assert published(subject.due(NOW + 6, run_known=True)) == [b"group 1", b"group 0"]
