"""Gossip: pushes, offers, wants and their bounds."""

from __future__ import annotations

import math
import random

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import LedgerHead, StorageReceipt
from p2prl.protocol.link_messages import Offer, Push, Want
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.gossip.forwarding import Gossip, GossipConfig
from p2prl.swarm.gossip.offers import Announcements
from p2prl_lab.testing.protocol_swarm import group_of

KEY = Identity(b"k" * 16)
A, B, C, D, E = (PeerId(name) for name in "ABCDE")


def group(slot: int = 0) -> Opened:
    return open_envelope(seal(KEY, group_of(slot), run=bytes(32), now=1e9), now=None)


def gossip(roles: dict[PeerId, Role], role: Role = Role.VOLUNTEER, **config: int) -> Gossip:
    made = Gossip(role, random.Random(1), GossipConfig(**config))
    for peer, role in roles.items():
        made.set_role(peer, role)
    return made


def at_once(made: Gossip) -> list[tuple[PeerId, Wire]]:
    """Messages sent without waiting for a batch."""
    out = list(made.outbox)
    made.outbox.clear()
    return out


def drained(made: Gossip) -> list[tuple[PeerId, Wire]]:
    """Messages sent now and once every wait is over."""
    for now in (0.0, 1.0):
        made.flush(now)
    out = list(made.outbox)
    made.outbox.clear()
    return out


def test_an_author_pushes_to_learners_and_offers_to_validators() -> None:
    made = gossip({A: Role.LEARNER, B: Role.VALIDATOR, C: Role.VOLUNTEER, D: Role.BOARD})
    opened = group()
    made.spread(opened, source=None)
    assert drained(made) == [(A, Push(opened.raw)), (B, Offer((opened.digest,)))]


def test_a_forwarder_offers_to_all_but_its_source() -> None:
    made = gossip({A: Role.LEARNER, B: Role.LEARNER, C: Role.VALIDATOR})
    opened = group()
    made.spread(opened, source=A)
    assert drained(made) == [(B, Offer((opened.digest,))), (C, Offer((opened.digest,)))]


def receipt_of(number: int) -> Opened:
    body = StorageReceipt((bytes([number]) * 32,))
    return open_envelope(seal(KEY, body, run=bytes(32), now=1e9), now=None)


def test_offers_are_batched_except_to_the_learner() -> None:
    made = gossip({A: Role.LEARNER, B: Role.VALIDATOR, D: Role.VOLUNTEER})
    groups, receipts = [group(slot) for slot in range(3)], [receipt_of(number) for number in range(2)]
    for opened in (*groups, *receipts):
        made.spread(opened, source=C)
    assert at_once(made) == [(A, Offer((opened.digest,))) for opened in groups]
    made.flush(5.0)
    assert at_once(made) == []
    due = made.next_deadline()
    assert 5.0 < due < 6.0
    made.flush(due - 1e-6)
    assert at_once(made) == []
    made.flush(due)
    assert at_once(made) == [
        (B, Offer(tuple(opened.digest for opened in groups))),
        (D, Offer(tuple(opened.digest for opened in receipts))),
    ]
    made.flush(due + 9.0)
    assert at_once(made) == []


def test_a_peer_that_knows_is_not_offered() -> None:
    made = gossip(dict.fromkeys((A, B, C, D), Role.VOLUNTEER))
    opened = receipt_of(1)
    made.on_offer(Offer((opened.digest,)), A)
    made.spread(opened, source=E)
    made.on_offer(Offer((opened.digest,)), B)
    made.on_want(Want((opened.digest,)), C)
    assert at_once(made) == [(A, Want((opened.digest,))), (C, Push(opened.raw))]
    assert drained(made) == [(D, Offer((opened.digest,)))]


def test_offers_to_a_lost_link_are_dropped() -> None:
    made = gossip({A: Role.VOLUNTEER})
    made.spread(receipt_of(1), source=B)
    made.flush(0.0)
    made.remove_peer(A)
    made.flush(1.0)
    assert at_once(made) == []
    assert made.next_deadline() == math.inf, "no deadline is left"


def test_large_offers_are_split() -> None:
    many = limits.MAX_DIGESTS_PER_MESSAGE + 1
    names = [group(slot).digest for slot in range(many)]
    announcements = Announcements(random.Random(0), 1.0)
    for name in names:
        announcements.add(A, name)
    list(announcements.take_due(0.0))
    sent = [message.digests for _, message in announcements.take_due(1.0)]
    assert [len(digests) for digests in sent] == [many - 1, 1]
    assert [name for digests in sent for name in digests] == names


def test_carriers_get_groups_without_a_learner() -> None:
    volunteers = {PeerId(f"V{i}"): Role.VOLUNTEER for i in range(10)}
    made = gossip(volunteers, carriers=3)
    opened = group()
    made.spread(opened, source=None)
    sent = drained(made)
    assert len({peer for peer, _ in sent}) == 3
    assert all(message == Push(opened.raw) for _, message in sent)
    made.spread(group(1), source=A)
    assert [type(message) for _, message in drained(made)] == [Offer] * 3


def test_a_learner_offers_groups_to_validators_only() -> None:
    made = gossip({A: Role.VOLUNTEER, B: Role.VOLUNTEER, C: Role.VALIDATOR}, role=Role.LEARNER)
    opened = group()
    made.spread(opened, source=A)
    assert drained(made) == [(C, Offer((opened.digest,)))]


def test_other_kinds_are_not_carried() -> None:
    made = gossip({A: Role.VOLUNTEER, B: Role.BOARD})
    head = open_envelope(seal(KEY, LedgerHead(0, bytes(32), 0, False), run=bytes(32), now=1e9), now=None)
    receipt = open_envelope(seal(KEY, StorageReceipt((bytes(32),)), run=bytes(32), now=1e9), now=None)
    made.spread(head, source=None)
    made.spread(receipt, source=None)
    assert drained(made) == [(A, Push(head.raw)), (B, Push(head.raw)), (A, Push(receipt.raw))]


def test_spreading_again_pushes_again() -> None:
    made = gossip({A: Role.LEARNER})
    opened = group()
    for _ in range(2):
        made.spread(opened, source=None)
        assert drained(made) == [(A, Push(opened.raw))]


def test_one_want_per_envelope_then_the_next_offerer() -> None:
    made = gossip({A: Role.VOLUNTEER, B: Role.VOLUNTEER})
    name = group().digest
    made.on_offer(Offer((name,)), A)
    made.on_offer(Offer((name,)), B)
    assert drained(made) == [(A, Want((name,)))]
    asked = []
    for _ in range(2):
        made.retry_wants()
        asked += [peer for peer, _ in drained(made)]
    assert sorted(asked) == [A, B]
    made.retry_wants()
    assert drained(made) == [], "no offerer is left"


def test_accepted_envelopes_are_not_asked_for() -> None:
    made = gossip({A: Role.VOLUNTEER})
    opened = group()
    made.spread(opened, source=A)
    drained(made)
    made.on_offer(Offer((opened.digest,)), A)
    assert drained(made) == []
    assert not made.is_new(opened.digest)


def test_retried_wants_to_one_peer_share_a_message() -> None:
    made = gossip({A: Role.VOLUNTEER})
    made.on_offer(Offer(tuple(group(slot).digest for slot in range(5))), A)
    drained(made)
    made.retry_wants()
    ((peer, message),) = drained(made)
    assert peer == A
    assert isinstance(message, Want)
    assert len(message.digests) == 5


def test_wants_are_answered_from_store_and_pins() -> None:
    made = gossip({A: Role.VOLUNTEER}, store_bytes=3000)
    kept = [group(slot) for slot in range(20)]
    made.pin(kept[0].raw, kept[0].digest)
    for opened in kept:
        made.spread(opened, source=B)
    drained(made)
    made.on_want(Want((kept[0].digest, kept[1].digest, kept[-1].digest, Digest(bytes(32)))), A)
    assert drained(made) == [(A, Push(kept[0].raw)), (A, Push(kept[-1].raw))], (
        "the oldest was dropped, the pinned one was not"
    )
    made.unpin(kept[0].digest)
    made.on_want(Want((kept[0].digest,)), A)
    assert drained(made) == []


def test_answers_to_wants_are_bounded() -> None:
    kept = [group(slot) for slot in range(20)]
    size = max(len(opened.raw) for opened in kept)
    made = gossip({A: Role.VOLUNTEER, B: Role.VOLUNTEER}, answer_bytes=5 * size)
    for opened in kept:
        made.spread(opened, source=C)
    drained(made)
    made.drained()
    made.on_want(Want((kept[0].digest,) * limits.MAX_DIGESTS_PER_MESSAGE), A)
    assert drained(made) == [(A, Push(kept[0].raw))]
    made.drained()
    for _ in range(limits.MAX_MESSAGES_PER_FRAME):
        made.on_want(Want(tuple(opened.digest for opened in kept)), A)
    made.on_want(Want((kept[7].digest,)), B)
    sent = drained(made)
    assert 4 * size < sum(len(message.envelope) for peer, message in sent if isinstance(message, Push) and peer == A)
    assert sum(len(message.envelope) for peer, message in sent if isinstance(message, Push) and peer == A) <= 5 * size
    assert sent[-1] == (B, Push(kept[7].raw)), "others are still answered"
    made.on_want(Want((kept[9].digest,)), A)
    assert drained(made) == []
    made.drained()
    made.on_want(Want((kept[9].digest,)), A)
    assert drained(made) == [(A, Push(kept[9].raw))], "asking again helps"


def test_a_lost_offerer_is_not_asked() -> None:
    made = gossip({A: Role.VOLUNTEER})
    made.on_offer(Offer((group().digest,)), A)
    drained(made)
    made.remove_peer(A)
    made.retry_wants()
    assert drained(made) == []


def test_a_repeated_group_is_offered_to_a_new_learner() -> None:
    made = gossip({A: Role.VOLUNTEER, B: Role.VOLUNTEER})
    opened = group()
    made.spread(opened, source=A)
    drained(made)
    made.spread_again(opened.digest, source=A)
    assert drained(made) == [(B, Offer((opened.digest,)))]
    made.set_role(C, Role.LEARNER)
    made.spread_again(opened.digest, source=A)
    assert drained(made) == [(C, Offer((opened.digest,)))]


def test_only_kinds_bound_for_the_learner_are_repeated() -> None:
    made = gossip({A: Role.VOLUNTEER, B: Role.VOLUNTEER})
    receipt = open_envelope(seal(KEY, StorageReceipt((bytes(32),)), run=bytes(32), now=1e9), now=None)
    made.spread(receipt, source=A)
    drained(made)
    made.spread_again(receipt.digest, source=A)
    made.spread_again(Digest(bytes(32)), source=A)
    assert drained(made) == []


@pytest.mark.parametrize("store_bytes", [1 << 20, 1])
def test_a_learner_asks_again_for_a_group_that_it_has_not_stored(store_bytes: int) -> None:
    made = gossip({A: Role.SEEDER}, Role.LEARNER, store_bytes=store_bytes)
    opened = group()
    made.spread(opened, source=A)
    drained(made)
    made.on_offer(Offer((opened.digest,)), A)
    assert drained(made) == [(A, Want((opened.digest,)))], "its author sends it again: it was turned away"
    receipt = open_envelope(seal(KEY, StorageReceipt((opened.digest,)), run=bytes(32), now=1e9), now=None)
    made.note_receipt(receipt)
    made.on_offer(Offer((opened.digest,)), A)
    assert drained(made) == []


def test_nobody_else_asks_twice() -> None:
    made = gossip({A: Role.SEEDER}, Role.SEEDER)
    opened = group()
    made.spread(opened, source=A)
    drained(made)
    made.on_offer(Offer((opened.digest,)), A)
    assert drained(made) == []


@pytest.mark.parametrize("names", [(b"short",), (bytes(33),), (bytes(32),) * (limits.MAX_DIGESTS_PER_MESSAGE + 1)])
def test_malformed_digests_are_refused(names: tuple[bytes, ...]) -> None:
    made = gossip({A: Role.VOLUNTEER})
    with pytest.raises(RemoteProtocolError):
        made.on_offer(Offer(names), A)
    with pytest.raises(RemoteProtocolError):
        made.on_want(Want(names), A)
    assert drained(made) == []


def test_offered_envelopes_are_bounded() -> None:
    made = gossip({A: Role.VOLUNTEER}, seen=50)
    for start in range(0, 200, 10):
        made.on_offer(Offer(tuple(Digest(i.to_bytes(32, "big")) for i in range(start, start + 10))), A)
    drained(made)
    made.retry_wants()
    ((_, message),) = drained(made)
    assert isinstance(message, Want)
    assert len(message.digests) == 50
