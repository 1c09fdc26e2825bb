"""Owners at the learner: a delegation enters the ledger when it is earned, and survives a restart there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p2prl.learner.intake import owners as module
from p2prl.learner.intake.owners import Owners
from p2prl.learner.journal.groups import StoredGroup
from p2prl.learner.journal.journal import Journal
from p2prl.net.process import control
from p2prl.protocol import ledger_chain
from p2prl.protocol.delegation import DAY_MS, Delegation, sign_delegation, sign_revocation
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import Opened, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import Receipts
from p2prl.protocol.membership_statements import Membership, OwnersStatement, sign_membership, sign_team_name
from p2prl.protocol.standing import Standing
from p2prl.scoreboard.ledger.ledger_fold import LedgerFold
from p2prl.swarm import signals
from tests.unit.learner.scripted_swarm import PEERS, ScriptedSwarm, fresh_runs
from tests.unit.learner.small_run import NOW, SmallRun, identity

RUN = digest("p2prl/test-run", b"")
NOW_MS = int(NOW * 1000)
ANN, EVE, ATTIC, CELLAR, TEAM = (identity(name) for name in ("ann", "eve", "attic", "cellar", "team"))


class FixedClock:
    def now(self) -> float:
        return NOW


class Bench:
    """A learner's journal and its table of owners."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.path)
        self.owners = Owners(self.journal, FixedClock())

    def restart(self) -> None:
        self.journal.close()
        self.open()

    def verify_group_of(self, peer: Identity) -> None:
        """A group of a peer passes its checks."""
        name = Digest(digest("p2prl/test-group", peer.public_key))
        with self.journal.transaction():
            self.journal.groups.store(StoredGroup(name, peer.public_key, 0, 0, b"raw", b"", b""), NOW)
            self.journal.groups.mark_verified(name, behavior=b"", rewards=b"")
            self.owners.enter([peer.public_key])

    def confirm_verdict_of(self, peer: Identity, *, agreed: bool) -> None:
        """The learner has checked a verdict of a peer."""
        with self.journal.transaction():
            standing = Standing().after(NOW, passed=agreed, failed=not agreed)
            self.journal.verdicts.set_standing(peer.public_key, standing)

    def ledger(self) -> list[Kind]:
        head, kinds = ledger_chain.GENESIS, []
        for height, raw in enumerate(self.journal.ledger.entries(0, 99)):
            opened, head = ledger_chain.follow(raw, height=height, head=head, run=RUN, learner=bytes(32))
            kinds.append(opened.kind)
        return kinds

    def owner_of(self, machine: Identity) -> bytes:
        return self.owners.identity_of(machine.public_key)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "journal.db")
    yield made
    made.journal.close()


def delegation(owner: Identity = ANN, machine: Identity = ATTIC, *, serial: int = NOW_MS, days: int = 1) -> Delegation:
    return sign_delegation(owner, machine.public_key, serial=serial, expires_ms=serial + days * DAY_MS)


def sent(by: Identity, statement: OwnersStatement) -> Opened:
    return open_envelope(seal(by, statement, run=RUN, now=NOW), now=None)


def test_a_delegation_enters_the_ledger_with_the_first_verified_group(bench: Bench) -> None:
    assert bench.owner_of(ATTIC) == ATTIC.public_key
    assert not bench.owners.receive([sent(ATTIC, delegation())])
    assert bench.owner_of(ATTIC) == ANN.public_key, "caps count the owner at once"
    assert bench.ledger() == []
    bench.verify_group_of(CELLAR)
    assert bench.ledger() == []
    bench.verify_group_of(ATTIC)
    assert bench.ledger() == [Kind.DELEGATION]
    assert not bench.owners.receive([sent(ATTIC, delegation())]), "it is sent again every ten minutes"
    bench.restart()
    assert not bench.owners.receive([sent(ATTIC, delegation())])
    assert bench.owner_of(ATTIC) == ANN.public_key


def test_a_machine_with_a_verified_group_is_entered_at_once(bench: Bench) -> None:
    bench.verify_group_of(ATTIC)
    assert bench.owners.receive([sent(ATTIC, delegation())])
    assert bench.ledger() == [Kind.DELEGATION]


def test_a_revocation_enters_only_after_its_delegation(bench: Bench) -> None:
    revocation = sent(EVE, sign_revocation(ANN, ATTIC.public_key, serial=NOW_MS, from_ms=NOW_MS))
    assert not bench.owners.receive([revocation])
    bench.verify_group_of(ATTIC)
    bench.owners.receive([sent(ATTIC, delegation())])
    assert bench.owners.receive([revocation])
    assert not bench.owners.receive([revocation])
    assert bench.ledger() == [Kind.DELEGATION, Kind.REVOCATION]
    assert bench.owner_of(ATTIC) == ATTIC.public_key
    bench.restart()
    assert bench.owner_of(ATTIC) == ATTIC.public_key


def test_a_revoked_delegation_no_longer_waits(bench: Bench) -> None:
    bench.owners.receive([sent(ATTIC, delegation())])
    bench.owners.receive([sent(EVE, sign_revocation(EVE, ATTIC.public_key, serial=NOW_MS, from_ms=0))])
    assert bench.owner_of(ATTIC) == ANN.public_key, "another owner's"
    bench.owners.receive([sent(EVE, sign_revocation(ANN, ATTIC.public_key, serial=NOW_MS, from_ms=NOW_MS))])
    assert bench.owner_of(ATTIC) == ATTIC.public_key
    bench.verify_group_of(ATTIC)
    assert bench.ledger() == []


def test_a_delegation_that_is_over_is_not_entered(bench: Bench) -> None:
    bench.verify_group_of(ATTIC)
    assert not bench.owners.receive([sent(ATTIC, delegation(serial=NOW_MS - DAY_MS))])
    assert bench.owners.receive([sent(ATTIC, delegation(serial=NOW_MS - DAY_MS + 1))])


def test_the_newest_of_a_machines_waiting_delegations_counts(bench: Bench) -> None:
    bench.owners.receive([sent(ATTIC, delegation(serial=NOW_MS + 1)), sent(ATTIC, delegation(EVE))])
    assert bench.owner_of(ATTIC) == ANN.public_key


def membership(member: Identity = ANN, *, serial: int = NOW_MS) -> Membership:
    return sign_membership(member, sign_team_name(TEAM, "Red Pandas", serial=1), serial=serial)


def test_a_validator_is_entered_with_its_first_confirmed_verdict(bench: Bench) -> None:
    bench.confirm_verdict_of(CELLAR, agreed=False)
    assert not bench.owners.receive([sent(CELLAR, delegation(machine=CELLAR))])
    bench.confirm_verdict_of(CELLAR, agreed=True)
    assert bench.owners.receive([sent(CELLAR, delegation(machine=CELLAR)), sent(CELLAR, membership())])
    assert bench.ledger() == [Kind.DELEGATION, Kind.MEMBERSHIP]


def test_a_membership_waits_for_work_and_follows_its_delegation(bench: Bench) -> None:
    assert not bench.owners.receive([sent(ATTIC, membership()), sent(ATTIC, delegation())])
    bench.verify_group_of(ATTIC)
    assert bench.ledger() == [Kind.DELEGATION, Kind.MEMBERSHIP]
    assert not bench.owners.receive([sent(ATTIC, membership())]), "it is sent again every ten minutes"
    bench.restart()
    assert not bench.owners.receive([sent(ATTIC, membership())])
    left = sign_membership(ANN, None, serial=NOW_MS + 1)
    assert bench.owners.receive([sent(ATTIC, left)])
    assert bench.ledger() == [Kind.DELEGATION, Kind.MEMBERSHIP, Kind.MEMBERSHIP]


def test_a_membership_that_comes_before_its_delegation_is_entered_with_it(bench: Bench) -> None:
    bench.verify_group_of(ATTIC)
    assert not bench.owners.receive([sent(ATTIC, membership())])
    assert bench.owners.receive([sent(ATTIC, delegation())])
    assert bench.ledger() == [Kind.DELEGATION, Kind.MEMBERSHIP]


def test_nobody_enters_the_membership_of_another(bench: Bench) -> None:
    bench.verify_group_of(EVE)
    bench.verify_group_of(CELLAR)
    assert not bench.owners.receive([sent(EVE, membership())])
    assert bench.ledger() == []
    assert bench.owners.receive([sent(CELLAR, membership(CELLAR))]), "a machine without an owner speaks for itself"
    assert bench.ledger() == [Kind.MEMBERSHIP]


def test_the_newest_of_a_machines_waiting_memberships_counts(bench: Bench) -> None:
    older, newer = membership(ATTIC), sign_membership(ATTIC, None, serial=NOW_MS + 1)
    bench.owners.receive([sent(ATTIC, newer), sent(ATTIC, older)])
    bench.verify_group_of(ATTIC)
    assert bench.ledger() == [], "to be in no team says nothing"


def test_memberships_of_free_keys_cost_bounded_memory_and_no_entry(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    keys = [identity(f"free {number}") for number in range(3)]
    bench.owners.receive([sent(key, membership(key)) for key in keys])
    assert bench.ledger() == []
    for key in keys:
        bench.verify_group_of(key)
    assert bench.ledger() == [Kind.MEMBERSHIP] * 2


def test_free_keys_cost_bounded_memory_and_no_entry(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    keys = [identity(f"free {number}") for number in range(3)]
    bench.owners.receive([sent(key, delegation(EVE, key)) for key in keys])
    assert [bench.owner_of(key) == EVE.public_key for key in keys] == [False, True, True]
    assert bench.ledger() == []


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], SmallRun]]:
    with fresh_runs(tmp_path) as make:
        yield make


def test_in_a_run_two_machines_become_one_row(fresh: Callable[[str], SmallRun]) -> None:
    small_run = fresh("run")
    swarm = ScriptedSwarm(small_run)
    for machine in PEERS:
        raw = seal(machine, delegation(machine=machine), run=small_run.run, now=NOW)
        swarm.port.inbox.append(control.EnvelopeArrived(raw))
    swarm.finish()
    swarm.port.inbox.append(signals.LedgerWanted("peer", 0))
    swarm.turn()
    (entries,) = swarm.port.pages
    fold = LedgerFold(run=small_run.run, learner=small_run.learner.public_key, parameters=1)
    kinds = [fold.follow(raw).kind for raw in entries]
    assert kinds.count(Kind.DELEGATION) == 2
    assert kinds[0] is Kind.RECEIPTS, "not before a group was verified"
    state = fold.state()
    assert set(state.machines[ANN.public_key]) == {machine.public_key for machine in PEERS}
    assert set(state.people) == {ANN.public_key}
    bodies = swarm.port.bodies(Kind.RECEIPTS)
    assert all(isinstance(body, Receipts) for body in bodies)
    paid = sum(receipt.tokens for body in bodies for receipt in body.receipts)
    assert sum(person.tokens for person in state.people.values()) == paid
    swarm.learner.close()
