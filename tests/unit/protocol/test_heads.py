"""Who is sent home by a learner's heads: never by an old one."""

from __future__ import annotations

import itertools

from p2prl.protocol.heads import Farewell
from p2prl.protocol.messages import LedgerHead

NOW_MS = 1_800_000_000_000
MINUTE_MS = 60_000


def head(height: int, step: int, *, finished: bool) -> LedgerHead:
    return LedgerHead(height, bytes(32), step, finished)


def test_a_farewell_is_obeyed_and_a_repeated_one_is_not() -> None:
    farewell = Farewell()
    old = head(10, 5, finished=True)
    assert farewell.on_head(old, NOW_MS)
    assert not farewell.on_head(head(10, 5, finished=False), NOW_MS + MINUTE_MS), "taken up again"
    assert not farewell.on_head(old, NOW_MS)
    assert not farewell.on_head(head(12, 6, finished=False), NOW_MS + 2 * MINUTE_MS)
    assert not farewell.on_head(old, NOW_MS)
    assert not farewell.on_head(head(13, 5, finished=True), NOW_MS + 3 * MINUTE_MS), "fewer updates than were heard of"
    assert farewell.on_head(head(13, 7, finished=True), NOW_MS + 3 * MINUTE_MS)
    assert farewell.on_head(head(12, 6, finished=False), NOW_MS + 2 * MINUTE_MS), "an older head undoes nothing"


def test_heads_say_the_same_in_any_order() -> None:
    heads = [
        (head(1, 1, finished=True), NOW_MS),
        (head(1, 1, finished=False), NOW_MS + 10),
        (head(2, 1, finished=False), NOW_MS + 20),
        (head(2, 1, finished=True), NOW_MS + 20),
    ]
    for order in itertools.permutations(heads):
        farewell = Farewell()
        for one, sent_ms in order:
            farewell.on_head(one, sent_ms)
        assert farewell.finished, order


def test_a_farewell_minutes_older_than_another_head_is_a_repetition() -> None:
    farewell = Farewell()
    farewell.on_head(head(5, 5, finished=False), NOW_MS)
    assert not farewell.on_head(head(6, 6, finished=True), NOW_MS - 10 * MINUTE_MS)


def test_a_newcomer_that_knows_a_later_policy_is_not_sent_home() -> None:
    farewell = Farewell()
    assert farewell.on_head(head(5, 5, finished=True), NOW_MS)
    assert farewell.on_policy(5)
    assert not farewell.on_policy(6)
    assert not farewell.on_head(head(5, 5, finished=True), NOW_MS)
    assert farewell.on_head(head(8, 6, finished=True), NOW_MS + 1)
