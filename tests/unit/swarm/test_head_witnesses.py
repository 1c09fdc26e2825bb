"""Countersignatures that a node keeps and passes on: bounded over all keys, with places for validators of standing."""

from __future__ import annotations

import pytest

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.countersignature import countersigned_head
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import Countersignature, LedgerHead
from p2prl.scoreboard.ledger.signed_head import PERIOD_S, Countersigner, SignedHead
from p2prl.sim.machines import identity_of
from p2prl.swarm.gossip.head_witnesses import KNOWN_KEPT, NEWCOMERS_KEPT, READERS, HeadWitnesses

NOW = 1.8e9
RUN = bytes(range(32))
LEARNER, ANN = identity_of("learner"), identity_of("ann")
BOARD = PeerId("board")


def head(height: int, *, digest: bytes = bytes(32), by: Identity = LEARNER, run: bytes = RUN) -> Opened:
    return open_envelope(seal(by, LedgerHead(height, digest, 0, False), run=run, now=NOW + height), now=None)


def countersigned(of: Opened, by: Identity = ANN) -> Opened:
    return open_envelope(seal(by, Countersignature(of.raw), run=RUN, now=NOW), now=None)


def sent(at: float, height: int, by: Identity = ANN) -> Opened:
    """A countersignature of a head of this many entries, signed at a time."""
    return open_envelope(seal(by, Countersignature(head(height).raw), run=RUN, now=at), now=None)


def admit(kept: HeadWitnesses, number: int, *, known: bool, now: float, height: int = 5) -> Opened | None:
    opened = sent(now, height, identity_of(f"validator {number}"))
    return opened if kept.admits(opened, head(height), now, is_known=known) else None


def test_newcomers_leave_the_places_of_known_validators_alone() -> None:
    kept = HeadWitnesses()
    known = [admit(kept, number, known=True, now=NOW) for number in range(KNOWN_KEPT)]
    assert all(known)
    passed = [admit(kept, 1_000 + number, known=False, now=NOW + number) for number in range(2 * KNOWN_KEPT)]
    shown = kept.for_peer(BOARD, Role.BOARD)
    assert {opened.raw for opened in known if opened} < set(shown)
    assert len(shown) == 1 + KNOWN_KEPT + NEWCOMERS_KEPT
    newest = [opened.raw for opened in passed if opened][-NEWCOMERS_KEPT:]
    assert set(newest) < set(shown)


def test_a_flood_of_keys_is_passed_on_at_one_a_second() -> None:
    kept = HeadWitnesses()
    passed = sum(admit(kept, number, known=False, now=NOW + number / 100) is not None for number in range(1_000))
    assert 32 <= passed <= 32 + 10


def test_one_author_is_passed_on_every_twenty_seconds() -> None:
    kept = HeadWitnesses()
    passed = [admit(kept, 0, known=True, now=NOW + second) is not None for second in range(200)]
    assert 4 + 9 <= sum(passed) <= 4 + 10


@pytest.mark.parametrize("known", [True, False])
def test_old_countersignatures_that_anybody_repeats_do_not_take_the_place_of_the_newest(known: bool) -> None:
    kept = HeadWitnesses()
    newest = sent(NOW, 500)
    assert kept.admits(newest, head(500), NOW, is_known=known)
    for minute in range(1, 100):
        old = sent(NOW - 60 * minute, 500 - minute)
        assert not kept.admits(old, head(500 - minute), NOW + minute, is_known=known)
    assert kept.for_peer(BOARD, Role.BOARD) == (head(500).raw, newest.raw)
    assert kept.admits(sent(NOW + 100, 600), head(600), NOW + 100, is_known=known), "nor the author's pace"


@pytest.mark.parametrize("known", [True, False])
def test_repeated_ones_in_the_order_of_their_signing_leave_the_author_its_pace(known: bool) -> None:
    kept = HeadWitnesses()
    for minute in range(100, 0, -1):
        kept.admits(sent(NOW - 600 - 60 * minute, 500 - minute), head(500 - minute), NOW, is_known=known)
    fresh = sent(NOW, 500)
    assert kept.admits(fresh, head(500), NOW, is_known=known)
    assert fresh.raw in kept.for_peer(BOARD, Role.BOARD)


def test_a_reader_is_told_once_a_link_and_others_are_not() -> None:
    kept = HeadWitnesses()
    assert kept.for_peer(BOARD, Role.BOARD) == ()
    kept.note_head(head(3))
    kept.note_head(head(2))
    assert [kept.for_peer(PeerId(role.name), role) for role in Role if role not in READERS] == [(), ()]
    assert kept.for_peer(BOARD, Role.BOARD) == (head(3).raw,)
    assert kept.for_peer(BOARD, Role.BOARD) == ()
    kept.remove_peer(BOARD)
    assert kept.for_peer(BOARD, Role.BOARD) == (head(3).raw,)


def test_two_heads_of_one_height_are_kept_for_good() -> None:
    kept = HeadWitnesses()
    pair = head(3), head(3, digest=bytes([1]) * 32)
    kept.note_head(pair[0])
    assert not kept.fork
    kept.admits(countersigned(pair[1]), pair[1], NOW, is_known=False)
    for height in range(4, 200):
        kept.note_head(head(height))
    assert kept.fork == (pair[0].raw, pair[1].raw)
    assert set(kept.fork) < set(kept.for_peer(BOARD, Role.BOARD))


def test_old_heads_that_anybody_repeats_hide_no_fork() -> None:
    kept = HeadWitnesses()
    kept.note_head(head(1_000))
    for height in range(1, 200):
        kept.note_head(head(height))
    other = head(1_000, digest=bytes([1]) * 32)
    kept.note_head(other)
    assert kept.fork == (head(1_000).raw, other.raw)


@pytest.mark.parametrize(
    "false",
    [
        countersigned(head(3, by=ANN)),
        countersigned(head(3, run=bytes(32))),
        countersigned(head(0)),
        countersigned(head(3), LEARNER),
        countersigned(countersigned(head(3))),
        open_envelope(seal(ANN, Countersignature(b""), run=RUN, now=NOW), now=None),
        open_envelope(seal(ANN, Countersignature(head(3).raw), run=bytes(32), now=NOW), now=None),
        open_envelope(seal(ANN, Countersignature(bytes(limits.MAX_LEDGER_HEAD_BYTES + 1)), run=RUN, now=NOW), now=None),
    ],
)
def test_only_heads_that_the_learner_signed_are_countersigned(false: Opened) -> None:
    with pytest.raises(RemoteProtocolError):
        countersigned_head(false, run=RUN, learner=LEARNER.public_key)


def test_heads_and_their_countersignatures_are_never_too_old() -> None:
    late = NOW + 3 * limits.MAX_ENVELOPE_AGE_S
    for opened in (head(3), countersigned(head(3))):
        assert open_envelope(opened.raw, now=late).raw == opened.raw
        with pytest.raises(StaleWorkError):
            open_envelope(opened.raw, now=NOW - limits.MAX_CLOCK_SKEW_S - 10)


def test_a_validator_countersigns_once_a_minute_and_the_final_head_at_once() -> None:
    signer = Countersigner(ANN, RUN)

    def due(height: int, second: float, *, finished: bool = False) -> bool:
        return bool(signer.sign(SignedHead(height, bytes(32), head(height).raw, 0, finished), NOW + second))

    assert not due(0, 0)
    assert due(1, 1)
    assert not due(1, 500), "nothing new"
    assert due(2, 500)
    assert not due(3, 500 + PERIOD_S - 1)
    assert due(3, 500 + PERIOD_S)
    assert due(3, 500 + PERIOD_S + 1, finished=True)
    assert not due(3, 5_000, finished=True)
