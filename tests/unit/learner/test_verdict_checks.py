"""Checks of verdicts: a proof and a place are needed to enter the ledger, and no key is favored for coming first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from p2prl.learner.intake.admission import Outcome
from p2prl.learner.intake.verdict_checks import (
    KNOWN_PLACES,
    NEWCOMER_PLACES,
    WAITING_PLACES,
    VerdictIntake,
)
from p2prl.learner.journal.groups import GroupState, StoredGroup
from p2prl.learner.journal.journal import Journal
from p2prl.learner.journal.verdicts import OwnReplay
from p2prl.learner.signing_sender import SigningSender
from p2prl.models.replay.group_replay import Replay
from p2prl.models.replay.probes import ReplayProbes
from p2prl.models.replay_statistics.baselines import NoiseEvidence
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import Opened, body_of, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_chain import LedgerEntry
from p2prl.protocol.ledger_messages import CheckOutcome, ReceiptState, Verdict, VerdictCheck, VerdictChecks
from p2prl.protocol.rollout_group import EngineClass
from p2prl.protocol.standing import Standing
from p2prl.protocol.wire_codec import decode
from p2prl_lab.testing.protocol_swarm import group_of
from tests.unit.learner.small_run import NOW, identity

RUN = digest("p2prl/test-run", b"")
PEER = b"p" * 32
HONEST, LIAR, LAZY = identity("honest"), identity("liar"), identity("lazy")

PAIR = (EngineClass("", "", "", ""), EngineClass("", "", "", ""))


class Clock:
    def now(self) -> float:
        return NOW


class World:
    """A learner's journal with groups that it has replayed, and its verdict intake."""

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path)
        self.sender = SigningSender(identity("learner"), RUN, self.journal, Clock())
        self.intake = VerdictIntake(self.journal, self.sender, Clock())
        self.published: list[VerdictCheck] = []

    def stored(self, number: int) -> StoredGroup:
        name = Digest(digest("p2prl/test-group", number.to_bytes(4, "big")))
        stored = StoredGroup(name, PEER, 0, number, b"raw", b"", b"")
        with self.journal.transaction():
            self.journal.groups.store(stored, NOW)
        return stored

    def settle(self, stored: StoredGroup, *, reason: str = "", replayed: bool = True) -> None:
        """As the learner's settlement: the group gets its receipt."""
        probes = probes_for(stored) if replayed else None
        state = ReceiptState.REJECTED if reason else ReceiptState.VERIFIED
        replay = Replay(reason, (), 0, 40, 0.0, PAIR, NoiseEvidence(), probes=probes)
        outcome = Outcome(stored, group_of(0), state, reason, replay=replay)
        with self.journal.transaction():
            if reason:
                self.journal.groups.mark_refused(stored.digest, state=GroupState.REJECTED, reason=reason)
            else:
                self.journal.groups.mark_verified(stored.digest, behavior=b"", rewards=b"")
            self.note(self.intake.settle([outcome]))

    def settled(self, number: int, *, reason: str = "") -> StoredGroup:
        stored = self.stored(number)
        self.settle(stored, reason=reason)
        return stored

    def receive(self, *verdicts: Opened) -> list[CheckOutcome]:
        """Outcomes of the checks that these verdicts led to."""
        before = len(self.published)
        with self.journal.transaction():
            self.note(self.intake.receive(verdicts))
        return [CheckOutcome(check.outcome) for check in self.published[before:]]

    def note(self, envelopes: list[bytes]) -> None:
        for raw in envelopes:
            self.published += body_of(open_envelope(raw, now=None), VerdictChecks).checks

    def make_known(self, key: Identity) -> None:
        self.journal.verdicts.set_standing(key.public_key, Standing(8.0, 0.0, NOW))

    def in_ledger(self) -> list[tuple[bytes, bytes]]:
        """(validator, group) of the verdicts in the ledger, in order."""
        entries = [decode(raw, LedgerEntry, limit_bytes=1 << 20) for raw in self.journal.ledger.entries(0, 10_000)]
        opened = [open_envelope(entry.envelope, now=None) for entry in entries]
        return [(each.author, each.body.group) for each in opened if isinstance(each.body, Verdict)]


def probes_for(stored: StoredGroup) -> ReplayProbes:
    rng = np.random.default_rng(int.from_bytes(stored.digest[:4], "big"))
    logprobs = -np.abs(rng.normal(12.0, 3.0, (4, 128)))
    return ReplayProbes(logprobs.astype("<f2").tobytes(), np.full(4, 0.01, dtype="<f4").tobytes())


def verdict(
    key: Identity,
    on: StoredGroup,
    *,
    reason: str = "",
    proof: bool = True,
    peer: bytes = PEER,
    version: int = 0,
    tokens: int = 40,
) -> Opened:
    probes = probes_for(on).chosen_by(key.public_key, on.digest) if proof else bytes(32)
    body = Verdict(on.digest, peer, version, not reason, reason, tokens, 0, 0.0, probes)
    return open_envelope(seal(key, body, run=RUN, now=NOW), now=None)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "journal.db")
    yield made
    made.journal.close()


def test_a_proven_verdict_enters_the_ledger_once_with_its_check(world: World) -> None:
    one = world.settled(1)
    assert world.receive(verdict(HONEST, one)) == [CheckOutcome.AGREED]
    assert world.published == [VerdictCheck(HONEST.public_key, one.digest, int(CheckOutcome.AGREED), 40)]
    assert world.journal.ledger.height == 2
    assert world.receive(verdict(HONEST, one), verdict(HONEST, one, reason="seed_mismatch")) == []
    assert world.in_ledger() == [(HONEST.public_key, one.digest)]
    assert world.journal.verdicts.standing(HONEST.public_key) == Standing(1.0, 0.0, NOW)


def test_a_newcomers_verdict_without_a_proof_leaves_no_trace(world: World) -> None:
    one = world.settled(1)
    assert world.receive(verdict(LAZY, one, proof=False), verdict(LAZY, one, reason="seed_mismatch", proof=False)) == []
    copied = body_of(verdict(HONEST, one), Verdict)
    assert world.receive(open_envelope(seal(LAZY, copied, run=RUN, now=NOW), now=None)) == []
    assert world.journal.ledger.height == 0
    assert world.journal.verdicts.standing(LAZY.public_key) == Standing()
    assert world.intake.figures["verdicts/failed"] == 3
    assert world.receive(verdict(LAZY, one)) == [CheckOutcome.AGREED], "it may prove one later"


def test_a_known_validators_failure_is_recorded_and_costs_its_standing(world: World) -> None:
    world.make_known(LAZY)
    one, two = world.settled(1), world.settled(2)
    assert world.receive(verdict(LAZY, one, proof=False)) == [CheckOutcome.FAILED]
    assert not world.journal.verdicts.standing(LAZY.public_key).is_known
    assert world.receive(verdict(LAZY, two, proof=False)) == []
    assert world.in_ledger() == [(LAZY.public_key, one.digest)]


@pytest.mark.parametrize(
    ("learner", "validator", "outcome"),
    [
        ("", "", CheckOutcome.AGREED),
        ("seed_mismatch", "seed_mismatch", CheckOutcome.AGREED),
        ("seed_mismatch", "logprob_mismatch", CheckOutcome.AGREED),
        ("", "seed_mismatch", CheckOutcome.CONTRADICTED),
        ("seed_mismatch", "", CheckOutcome.CONTRADICTED),
        ("", "engine_mismatch", CheckOutcome.UNCLEAR),
        ("logprob_mismatch", "", CheckOutcome.UNCLEAR),
    ],
)
def test_results_are_compared(world: World, learner: str, validator: str, outcome: CheckOutcome) -> None:
    one = world.settled(1, reason=learner)
    assert world.receive(verdict(HONEST, one, reason=validator)) == [outcome]
    standing = world.journal.verdicts.standing(HONEST.public_key)
    assert (standing.passed, standing.failed) == (
        outcome is CheckOutcome.AGREED,
        outcome is CheckOutcome.CONTRADICTED,
    )


def test_what_cannot_be_checked_does_not_enter(world: World) -> None:
    one, unseen = world.settled(1), StoredGroup(Digest(bytes(32)), PEER, 0, 9, b"", b"", b"")
    by_rule = world.stored(2)
    world.settle(by_rule, reason="duplicate_slot", replayed=False)
    refused = [
        verdict(HONEST, unseen),
        verdict(HONEST, one, peer=b"q" * 32),
        verdict(HONEST, one, version=7),
        verdict(HONEST, by_rule, reason="wrong_prompt"),
    ]
    assert world.receive(*refused) == []
    assert world.journal.ledger.height == 0
    assert world.intake.figures["verdicts/refused"] == 4


def test_nobody_judges_its_own_work(world: World) -> None:
    one = world.settled(1)
    own = StoredGroup(one.digest, HONEST.public_key, 0, 1, b"", b"", b"")
    assert world.receive(verdict(HONEST, own, peer=HONEST.public_key)) == []


def test_verdicts_wait_for_the_receipt(world: World) -> None:
    one = world.stored(1)
    assert world.receive(verdict(HONEST, one), verdict(LAZY, one, proof=False)) == []
    assert world.receive(verdict(HONEST, one, reason="seed_mismatch")) == [], "one of each key"
    assert world.journal.ledger.height == 0, "the receipt comes first"
    world.settle(one)
    assert [check.validator for check in world.published] == [HONEST.public_key]
    assert world.in_ledger() == [(HONEST.public_key, one.digest)]
    assert world.journal.verdicts.waiting_on(one.digest) == []


def test_groups_settled_without_a_replay_release_their_verdicts_unchecked(world: World) -> None:
    one = world.stored(1)
    world.receive(verdict(HONEST, one))
    world.settle(one, reason="duplicate_slot", replayed=False)
    assert world.journal.ledger.height == 0
    assert not world.journal.verdicts.knows(HONEST.public_key, one.digest)


def test_a_thousand_keys_without_a_proof_take_no_place(world: World) -> None:
    one = world.settled(1)
    keys = [identity(f"key {number}") for number in range(1_000)]
    assert world.receive(*(verdict(key, one, proof=False) for key in keys[:200])) == []
    assert world.receive(verdict(HONEST, one)) == [CheckOutcome.AGREED]


def test_places_of_newcomers_and_known_validators_are_apart(world: World) -> None:
    one = world.settled(1)
    newcomers = [identity(f"newcomer {number}") for number in range(9)]
    known = [identity(f"known {number}") for number in range(20)]
    for key in known:
        world.make_known(key)
    entered = world.receive(*(verdict(key, one) for key in newcomers))
    assert len(entered) == NEWCOMER_PLACES
    assert len(world.receive(*(verdict(key, one) for key in known))) == KNOWN_PLACES
    assert len(world.in_ledger()) == NEWCOMER_PLACES + KNOWN_PLACES


def test_places_that_wait_go_to_the_known_then_by_a_draw_for_each_group(world: World) -> None:
    """40 newcomers send their verdicts first, always in the same order; the same ones must not win every group."""
    newcomers = [identity(f"newcomer {number}") for number in range(40)]
    world.make_known(HONEST)
    winners = []
    for number in range(12):
        one = world.stored(number)
        world.receive(*(verdict(key, one) for key in newcomers), verdict(HONEST, one))
        waiting = {each.validator for each in world.journal.verdicts.waiting_on(one.digest)}
        assert len(waiting) == WAITING_PLACES
        assert HONEST.public_key in waiting, "the last to come, but known"
        world.settle(one)
        entered = [validator for validator, group in world.in_ledger() if group == one.digest]
        assert entered[0] == HONEST.public_key
        winners += entered[1:]
    assert len(winners) == 12 * NEWCOMER_PLACES
    assert len(set(winners)) > 24, "4 of 40 for each of 12 groups, drawn evenly, are 28 keys on average"
    with_first = sum(winner in {key.public_key for key in newcomers[:4]} for winner in winners)
    assert with_first < 14, "a tenth of 48 on average"


def test_budgets_bound_each_validator_and_all_newcomers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.learner.intake.verdict_checks.NEWCOMER_VERDICTS_PER_VERSION", 3)
    monkeypatch.setattr("p2prl.learner.intake.verdict_checks.VERDICTS_PER_VERSION", 5)
    monkeypatch.setattr("p2prl.learner.intake.verdict_checks.WAITING_NEWCOMER_VERDICTS", 2)
    groups = [world.settled(number) for number in range(8)]
    keys = [identity(f"key {number}") for number in range(5)]
    entered = world.receive(*(verdict(key, group) for key, group in zip(keys, groups, strict=False)))
    assert len(entered) == 3
    world.make_known(HONEST)
    assert len(world.receive(*(verdict(HONEST, group) for group in groups))) == 5
    waiting = world.stored(20)
    world.receive(*(verdict(key, waiting) for key in keys))
    assert len(world.journal.verdicts.waiting_on(waiting.digest)) == 2


def test_a_replay_is_forgotten_when_there_are_too_many(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.learner.journal.verdicts.REPLAYS_KEPT", 1)
    one, two = world.settled(1), world.settled(2)
    assert world.journal.verdicts.replay_of(two.digest) == OwnReplay("", 40, probes_for(two))
    assert world.receive(verdict(HONEST, one)) == []
    assert world.receive(verdict(HONEST, two)) == [CheckOutcome.AGREED]
