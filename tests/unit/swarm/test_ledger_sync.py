"""Ledger queries and pages between peers."""

from __future__ import annotations

import random

from p2prl.protocol import frames, limits
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import LedgerPage, LedgerQuery, Padding
from p2prl.swarm.gossip.ledger_sync import LedgerSync

NOW = 1_800_000_000.0
A, B, C = (PeerId(name) for name in "abc")


def ledger_sync() -> LedgerSync:
    return LedgerSync(random.Random(1))


def granted(subject: LedgerSync, peer: PeerId, *, times: int, every_s: float, start: float = NOW) -> int:
    return sum(subject.may_query(peer, start + i * every_s) for i in range(times))


def test_any_peer_ahead_may_be_asked() -> None:
    subject = ledger_sync()
    for _ in range(50):
        subject.ask({A: 5, B: 6, C: 1_000}, 5)
    assert {peer for peer, _ in subject.outbox} == {B, C}
    assert {message for _, message in subject.outbox if not isinstance(message, Padding)} == {LedgerQuery(5)}
    subject.outbox.clear()
    subject.ask({A: 5}, 5)
    assert not subject.outbox


def test_a_page_is_taken_once_from_the_peer_that_was_asked_for_it() -> None:
    subject = ledger_sync()
    assert not subject.on_page(A, 0, ()), "nobody was asked"
    subject.ask({A: 9}, 5)
    assert [subject.on_page(peer, height, ()) for peer, height in ((B, 5), (A, 4), (A, 5), (A, 5))] == [0, 0, 1, 0]
    subject.ask({A: 9}, 5)
    subject.ask({A: 9}, 7)
    assert subject.on_page(A, 5, ()), "a role and its mirror ask at once"
    assert subject.on_page(A, 7, ())


def test_a_bounded_number_of_answers_is_awaited() -> None:
    subject = ledger_sync()
    peers = [PeerId(f"peer {number}") for number in range(200)]
    for peer in peers:
        subject.ask({peer: 9}, 5)
    taken = [subject.on_page(peer, 5, ()) for peer in peers]
    assert taken == [False] * 136 + [True] * 64


def test_queries_within_the_limit_are_answered() -> None:
    count = 40 * limits.MAX_LEDGER_QUERIES_PER_S
    assert granted(ledger_sync(), A, times=count, every_s=1 / limits.MAX_LEDGER_QUERIES_PER_S) == count


def test_a_query_flood_is_limited_per_peer() -> None:
    subject = ledger_sync()
    answered = granted(subject, A, times=10_000, every_s=0.001)
    assert 10 * limits.MAX_LEDGER_QUERIES_PER_S <= answered <= 12 * limits.MAX_LEDGER_QUERIES_PER_S
    assert subject.may_query(B, NOW + 10)


def test_a_clock_set_back_grants_no_queries() -> None:
    subject = ledger_sync()
    first = granted(subject, A, times=1_000, every_s=0.0)
    assert granted(subject, A, times=1_000, every_s=-1.0) == 0
    assert first < 3 * limits.MAX_LEDGER_QUERIES_PER_S


def test_a_page_fits_one_control_frame() -> None:
    subject = ledger_sync()
    small = [bytes([i]) for i in range(100)]
    subject.answer(A, 7, small)
    subject.answer(B, 0, [bytes(100_000)] * 5)
    (_, first), (_, second) = subject.outbox
    assert first == LedgerPage(7, tuple(small[: limits.MAX_LEDGER_ENTRIES_PER_REPLY]))
    assert isinstance(second, LedgerPage)
    assert len(second.entries) == 2
    assert len(frames.pack(second)) <= limits.MAX_CONTROL_FRAME_BYTES


def test_a_page_is_no_larger_than_the_room_for_it() -> None:
    subject = ledger_sync()
    assert subject.answer(A, 7, [bytes(1_000)] * 9, 3_100) <= 3_100
    assert [len(message.entries) for _, message in subject.outbox if isinstance(message, LedgerPage)] == [3]
    subject.outbox.clear()
    assert subject.answer(A, 7, [bytes(1_000)], 900) == 0
    assert not subject.outbox, "no entry fits"
    assert 0 < subject.answer(A, 7, [], 900) < 900, "a page without entries says that there are none"


def paid(subject: LedgerSync, ahead: int) -> int:
    subject.outbox.clear()
    subject.ask({A: ahead}, 0)
    return sum(len(message.data) for _, message in subject.outbox if isinstance(message, Padding))


def test_a_question_pays_for_the_page_that_is_expected() -> None:
    subject = ledger_sync()
    subject.ask({A: 1}, 0)
    assert subject.on_page(A, 0, [bytes(4_000)])
    one = paid(subject, 1)
    assert 4_000 / limits.MAX_AMPLIFICATION < one < 5_000 / limits.MAX_AMPLIFICATION
    assert paid(subject, 1) > 1.9 * one, "the last question had no answer: it may have paid too little"
    assert paid(subject, 10_000) == limits.MAX_CONTROL_FRAME_BYTES // limits.MAX_AMPLIFICATION, "no page is larger"
    assert subject.on_page(A, 0, [bytes(40)])
    assert paid(subject, 1) < one / 10
    assert max(paid(subject, 1) for _ in range(30)) < one, "what nobody answers is not paid for without bound"
