"""Inbox of a role that is busy: what strangers send has a bounded room, and everything else is kept."""

from __future__ import annotations

import queue
from collections import Counter

import pytest

from p2prl.net.process import control
from p2prl.net.process.control_channel import MAX_UNREAD_BYTES, Inbox
from p2prl.protocol.kinds import Kind
from p2prl.swarm import signals

SIZE = 250_000
FITTING = MAX_UNREAD_BYTES // SIZE


def arrived(kind: Kind) -> control.EnvelopeArrived:
    return control.EnvelopeArrived(bytes([0x96, kind]) + bytes(SIZE - 2))


def read_all(inbox: Inbox[None]) -> list[control.FromNetwork | None]:
    return [inbox.get() for _ in range(len(inbox))]


def test_what_strangers_send_to_a_busy_role_has_a_bounded_room() -> None:
    inbox: Inbox[None] = Inbox()
    kinds = (Kind.ROLLOUT_GROUP, Kind.GROUP_HEADER, Kind.VERDICT, Kind.DELEGATION, Kind.COUNTERSIGNATURE)
    for number in range(3 * FITTING):
        inbox.put(arrived(kinds[number % len(kinds)]))
    assert len(inbox) == FITTING
    for _ in range(10):
        inbox.get()
    for _ in range(20):
        inbox.put(arrived(Kind.VERDICT))
    assert len(inbox) == FITTING, "there is room for what was read"
    read_all(inbox)
    inbox.put(arrived(Kind.VERDICT))
    assert read_all(inbox) == [arrived(Kind.VERDICT)]


def test_what_the_learner_and_this_node_say_is_kept_in_order() -> None:
    inbox: Inbox[None] = Inbox()
    for _ in range(2 * FITTING):
        inbox.put(arrived(Kind.ROLLOUT_GROUP))
    kept = [arrived(Kind.RECEIPTS), signals.VersionAnnounced(1, 1), None, signals.LedgerArrived(0, (bytes(SIZE),))]
    for message in kept * FITTING:
        inbox.put(message)
    found = read_all(inbox)
    assert found[FITTING:] == kept * FITTING
    assert Counter(m.envelope[1] for m in found[:FITTING] if isinstance(m, control.EnvelopeArrived)) == {
        Kind.ROLLOUT_GROUP: FITTING
    }


def test_an_empty_inbox_says_so_after_the_wait() -> None:
    inbox: Inbox[None] = Inbox()
    for wait_s in (0.0, 0.01):
        with pytest.raises(queue.Empty):
            inbox.get(wait_s)
