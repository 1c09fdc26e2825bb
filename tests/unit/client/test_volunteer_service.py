"""The volunteer's shell with a network of the test's own: receipts it missed, liars, damaged weights, its end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p2prl.client.agent import AgentConfig, Wait
from p2prl.client.service import Progress, Volunteer, VolunteerConfig
from p2prl.errors import IntegrityError, UnreachableError
from p2prl.models.engine_port import StagedWeights, Weights
from p2prl.models.group_work import Prepared
from p2prl.net.process import control
from p2prl.protocol import ledger_chain
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead, Receipt, Receipts, ReceiptState, StorageReceipt, Verdict
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.wire_codec import encode
from tests.unit.learner.world import NOW, World, identity

ME = identity("volunteer")
STATUS = control.Status((("learner", 1),), 0, 0, 0, 0, (-1, 0, 0), 0, 0)


class Ear:
    """A network port that hands over what the test puts in."""

    addresses: tuple[str, ...] = ()
    status = None

    def __init__(self) -> None:
        self.inbox: list[control.FromNetwork] = []
        self.published: list[bytes] = []
        self.asked: list[int] = []

    def send(self, message: control.ToNetwork) -> None:
        if isinstance(message, control.Publish):
            self.published.append(message.envelope)
        elif isinstance(message, control.QueryLedger):
            self.asked.append(message.from_height)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        messages, self.inbox = self.inbox, []
        return messages

    def close(self) -> None:
        pass


class HandClock:
    def __init__(self) -> None:
        self.time = NOW

    def now(self) -> float:
        self.time += 0.001
        return self.time


class Bench:
    """A volunteer of a small run, its network and its clock."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory / "learner")
        self.spool = directory / "seat" / "spool.db"
        self.clock = HandClock()
        self.notices: list[str] = []
        self.progress: list[Progress] = []
        self.start()

    def start(self, *, background: bool = False) -> None:
        self.ear = Ear()
        self.volunteer = Volunteer(
            identity=ME,
            run=self.world.run,
            spool_path=self.spool,
            config=VolunteerConfig(agent=AgentConfig(slots_per_batch=2)),
            clock=self.clock,
            prepare=lambda manifest, files: Prepared(self.world.engine, self.world.work),
            on_manifest=lambda manifest, raw: None,
            on_progress=self.progress.append,
            on_notice=self.notices.append,
            background=background,
        )
        self.volunteer.attach(self.ear)

    def close(self) -> None:
        self.volunteer.close()
        self.world.close()

    def introduce(self) -> None:
        """The run, its files, and a learner in reach."""
        self.ear.inbox.append(control.RunKnown(self.world.manifest_raw))
        self.ear.inbox += [control.FileReady(file.name, "/nowhere") for file in self.world.manifest.files]
        self.ear.inbox.append(STATUS)

    def offer(self, version: int) -> None:
        """Weights of a version are on disk."""
        policy = self.world.publish(version, step=version)
        path = str(self.world.blobs.path(policy.manifest.weights.root))
        self.ear.inbox.append(control.VersionReady(policy.digest, encode(policy.manifest), path))

    def turns(self, count: int) -> None:
        for _ in range(count):
            self.clock.time += 0.25  # longer than the pause between two reports
            self.volunteer.turn(wait_s=0.0)

    def groups(self) -> list[RolloutGroup]:
        """Groups published so far."""
        return [body_of(open_envelope(raw, now=None), RolloutGroup) for raw in self.ear.published]

    def says(self, body: Any, author: Identity | None = None) -> bytes:
        return seal(author or self.world.learner, body, run=self.world.run, now=NOW)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def settled(raw: bytes, state: ReceiptState = ReceiptState.VERIFIED, reason: str = "") -> Receipt:
    group = body_of(open_envelope(raw, now=None), RolloutGroup)
    return Receipt(envelope_digest(raw), ME.public_key, group.version, group.slot, int(state), reason, 9, 2, 0.5)


def chain(*envelopes: bytes) -> tuple[bytes, ...]:
    entries, head = [], ledger_chain.GENESIS
    for height, envelope in enumerate(envelopes):
        raw, head = ledger_chain.append(height, head, envelope)
        entries.append(raw)
    return tuple(entries)


def test_groups_are_honest_in_order_and_on_disk_before_they_are_said(bench: Bench) -> None:
    bench.introduce()
    bench.offer(0)
    bench.turns(4)
    assert [group.slot for group in bench.groups()] == list(range(len(bench.groups())))
    stored = [bench.world.sealed(group, ME) for group in bench.groups()]
    assert {outcome.state for outcome in bench.world.check(*stored)} == {ReceiptState.VERIFIED}
    assert bench.progress[-1].groups == {"generated": len(stored)}


def test_after_a_crash_it_goes_on_at_the_next_slot(bench: Bench) -> None:
    bench.introduce()
    bench.offer(0)
    bench.turns(4)
    before = len(bench.groups())
    bench.volunteer.close()
    policy = bench.world.shelf.newest
    assert policy is not None
    bench.start()
    bench.introduce()
    path = str(bench.world.blobs.path(policy.manifest.weights.root))
    bench.ear.inbox.append(control.VersionReady(policy.digest, encode(policy.manifest), path))
    bench.clock.time += 10  # what was under way has had its time
    bench.turns(4)
    slots = [group.slot for group in bench.groups()]
    assert slots[:before] == list(range(before)), "what no learner had confirmed is offered again first"
    assert slots[before:] == list(range(before, len(slots)))
    assert len(slots) > before


def test_receipts_settle_groups_and_say_why_not(bench: Bench) -> None:
    bench.introduce()
    bench.offer(0)
    bench.turns(3)
    first, second = bench.ear.published[:2]
    stranger = Receipt(envelope_digest(first), identity("other").public_key, 0, 0, 3, "bad_tokens", 0, 0, 0.0)
    bench.ear.inbox = [
        control.EnvelopeArrived(bench.says(StorageReceipt((envelope_digest(first), envelope_digest(second))))),
        control.EnvelopeArrived(bench.says(Receipts(0, (stranger, settled(first))))),
        control.EnvelopeArrived(bench.says(Receipts(0, (settled(second, ReceiptState.REJECTED, "seed_mismatch"),)))),
    ]
    bench.turns(1)
    assert bench.notices == ["slot 1 of version 0 earned nothing: seed_mismatch"]
    assert bench.progress[-1].groups["verified"] == bench.progress[-1].groups["rejected"] == 1
    assert bench.progress[-1].reasons == {"seed_mismatch": 1}


def overdue(bench: Bench) -> bytes:
    """One group delivered long ago, with no receipt; returns its envelope."""
    bench.introduce()
    bench.offer(0)
    bench.turns(3)
    raw = bench.ear.published[0]
    bench.ear.inbox.append(control.EnvelopeArrived(bench.says(StorageReceipt((envelope_digest(raw),)))))
    bench.turns(1)
    bench.clock.time += 20
    bench.turns(1)
    return raw


def test_receipts_that_gossip_lost_are_read_from_the_ledger(bench: Bench) -> None:
    raw = overdue(bench)
    assert bench.ear.asked == [0]
    verdict = Verdict(envelope_digest(raw), ME.public_key, 0, True, "", 9, 0, 0.0)
    page = chain(bench.says(verdict, identity("validator")), bench.says(Receipts(0, (settled(raw),))))
    bench.ear.inbox.append(control.LedgerPage(0, page))
    bench.turns(1)
    assert bench.progress[-1].groups["verified"] == 1


def test_a_liars_page_cannot_hide_receipts(bench: Bench) -> None:
    """A neighbour answers with a chain of its own making; the learner's is read afresh once they differ."""
    raw = overdue(bench)
    liar = identity("liar")
    forged = chain(*(bench.says(Verdict(bytes(32), bytes(32), n, True, "", 0, 0, 0.0), liar) for n in range(5)))
    bench.ear.inbox.append(control.LedgerPage(0, forged))
    bench.turns(1)
    honest = chain(*(bench.says(Receipts(n, (settled(raw),) if n == 2 else ())) for n in range(9)))
    for _ in range(3):
        bench.clock.time += 20
        bench.turns(1)
        start = bench.ear.asked[-1]
        bench.ear.inbox.append(control.LedgerPage(start, honest[start:]))
        bench.turns(1)
    assert bench.progress[-1].groups["verified"] == 1


def test_receipts_somebody_else_signed_settle_nothing(bench: Bench) -> None:
    raw = overdue(bench)
    forged = chain(bench.says(Receipts(0, (settled(raw, ReceiptState.REJECTED, "bad_tokens"),)), identity("liar")))
    bench.ear.inbox += [control.LedgerPage(0, forged), control.LedgerPage(0, (b"garbage",))]
    bench.turns(1)
    assert bench.progress[-1].groups.get("rejected", 0) == 0
    assert bench.progress[-1].groups["delivered"] == 1


@pytest.mark.parametrize("left", [0, -4])
def test_damaged_or_vanished_weights_are_passed_over(bench: Bench, left: int) -> None:
    bench.introduce()
    bench.offer(0)
    bench.turns(3)
    bench.offer(1)
    newest = bench.world.shelf.newest
    assert newest is not None
    path = bench.world.blobs.path(newest.manifest.weights.root)
    path.write_bytes(path.read_bytes()[:left])
    bench.turns(2)
    assert any("version 1 cannot be used" in notice for notice in bench.notices)
    path.unlink()
    bench.ear.inbox.append(control.VersionReady(newest.digest, encode(newest.manifest), str(path)))
    bench.turns(3)
    assert {group.version for group in bench.groups()} == {0}


def test_it_samples_on_while_the_next_policy_is_staged(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread reads and checks; the version before is in use until it has."""
    bench.volunteer.close()
    bench.start(background=True)
    stage, may_go_on, done = bench.world.engine.stage, threading.Event(), threading.Event()

    def slow(weights: Weights, version: int) -> StagedWeights:
        assert version != 1 or may_go_on.wait(30)
        return stage(weights, version)

    monkeypatch.setattr(bench.world.engine, "stage", slow)
    bench.introduce()
    bench.offer(0)
    bench.turns(3)
    bench.offer(1)
    sampled = len(bench.groups())
    bench.turns(4)
    assert len(bench.groups()) >= sampled + 8
    assert {group.version for group in bench.groups()} == {0}
    bench.volunteer._staging._executor.submit(done.set)  # type: ignore[union-attr]
    may_go_on.set()
    assert done.wait(30)
    bench.turns(3)
    assert [group.version for group in bench.groups()][-1] == 1
    assert [group.version for group in bench.groups()] == sorted(group.version for group in bench.groups())


def test_a_policy_that_fails_its_known_answer_gives_way_to_the_one_before(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.introduce()
    bench.offer(0)
    bench.turns(3)
    stage = bench.world.engine.stage

    def wrong(weights: Weights, version: int) -> StagedWeights:
        staged = stage(weights, version)
        return replace(staged, answer=digest("p2prl/test", b"other words")) if version == 1 else staged

    monkeypatch.setattr(bench.world.engine, "stage", wrong)
    bench.offer(1)
    sampled = len(bench.groups())
    bench.turns(5)
    assert any("version 1 cannot be used" in notice for notice in bench.notices)
    assert len(bench.groups()) > sampled
    assert {group.version for group in bench.groups()} == {0}


def test_it_leaves_when_the_learner_has_ended_the_run_and_answered(bench: Bench) -> None:
    bench.introduce()
    bench.offer(0)
    bench.turns(3)
    head = LedgerHead(0, Digest(bytes(32)), 5, True)
    assert open_envelope(bench.says(head), now=None).kind is Kind.LEDGER_HEAD
    bench.ear.inbox.append(control.EnvelopeArrived(bench.says(head)))
    raws = list(bench.ear.published)
    assert raws
    bench.ear.inbox.append(control.EnvelopeArrived(bench.says(Receipts(0, tuple(settled(raw) for raw in raws)))))
    assert bench.volunteer.run(bench.ear) is True


def test_it_stays_as_long_as_receipts_come_after_the_end(bench: Bench) -> None:
    bench.introduce()
    bench.offer(0)
    bench.turns(5)
    raws = list(bench.ear.published)
    assert len(raws) >= 3
    late = raws[:-1]
    bench.ear.inbox.append(control.EnvelopeArrived(bench.says(LedgerHead(0, Digest(bytes(32)), 5, True))))
    answer = bench.ear.poll

    def slow(timeout_s: float) -> list[control.FromNetwork]:
        bench.clock.time += 4.0  # less than its patience for one receipt, more for all of them
        if late and not bench.ear.inbox:
            bench.ear.inbox.append(control.EnvelopeArrived(bench.says(Receipts(0, (settled(late.pop()),)))))
        return answer(timeout_s)

    bench.ear.poll = slow  # type: ignore[method-assign]
    assert bench.volunteer.run(bench.ear) is True
    assert bench.progress[-1].groups["verified"] == len(raws) - 1, "it left before it had all that came"


def test_it_stays_longer_for_what_a_learner_in_reach_has_taken(bench: Bench) -> None:
    bench.introduce()
    bench.offer(0)
    bench.turns(5)
    stored = bench.ear.published[0]
    bench.ear.inbox.append(control.EnvelopeArrived(bench.says(StorageReceipt((envelope_digest(stored),)))))
    bench.ear.inbox.append(control.EnvelopeArrived(bench.says(LedgerHead(0, Digest(bytes(32)), 5, True))))
    said_at, answer = bench.clock.time, bench.ear.poll

    def slow(timeout_s: float) -> list[control.FromNetwork]:
        bench.clock.time += 3.0
        if said_at + 20.0 < bench.clock.time <= said_at + 23.0:
            bench.ear.inbox.append(control.EnvelopeArrived(bench.says(Receipts(0, (settled(stored),)))))
        return answer(timeout_s)

    bench.ear.poll = slow  # type: ignore[method-assign]
    assert bench.volunteer.run(bench.ear) is True
    assert bench.progress[-1].groups["verified"] == 1
    assert bench.clock.time < said_at + 40.0, "nothing more was taken: it leaves"


def test_weights_that_are_not_numbers_are_passed_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.introduce()
    bench.offer(0)

    def broken(*_: Any, **__: Any) -> None:
        raise IntegrityError("the policy gives logits that are not numbers")

    with monkeypatch.context() as patch:
        patch.setattr(bench.world.engine, "generate", broken)
        bench.turns(4)
    assert bench.notices == ["version 0 cannot be sampled: the policy gives logits that are not numbers"]
    assert bench.groups() == []
    bench.offer(1)
    bench.turns(3)
    assert {group.version for group in bench.groups()} == {1}


def test_an_old_farewell_sends_nobody_home(bench: Bench) -> None:
    bench.introduce()
    bench.offer(7)
    bench.turns(1)
    for old in (LedgerHead(0, Digest(bytes(32)), 5, True), LedgerHead(3, Digest(bytes(32)), 6, True)):
        bench.ear.inbox.append(control.EnvelopeArrived(bench.says(old)))
        bench.turns(2)
    said = len(bench.groups())
    assert said
    bench.turns(2)
    assert len(bench.groups()) > said


def test_the_reward_shown_goes_on_where_it_was_before_a_restart(bench: Bench) -> None:
    bench.introduce()
    bench.turns(1)
    assert {progress.reward_recent for progress in bench.progress} == {None}, "nothing was earned yet"
    bench.offer(0)
    for _ in range(4):
        bench.clock.time += 1
        bench.turns(1)
    shown = bench.progress[-1].reward_recent
    assert shown is not None
    bench.volunteer.close()
    bench.start()
    bench.clock.time += 1
    bench.turns(1)
    assert bench.progress[-1].reward_recent == pytest.approx(shown)


def test_a_newcomer_to_a_finished_run_leaves_once_nobody_has_contradicted(bench: Bench) -> None:
    bench.introduce()
    bench.ear.inbox.append(control.EnvelopeArrived(bench.says(LedgerHead(9, Digest(bytes(32)), 9, True))))

    def wait(timeout_s: float) -> list[control.FromNetwork]:
        bench.clock.time += timeout_s
        messages, bench.ear.inbox = bench.ear.inbox, []
        return messages

    bench.ear.poll = wait  # type: ignore[method-assign]
    began = bench.clock.time
    assert bench.volunteer.run(bench.ear) is True
    assert 10 < bench.clock.time - began < 60


def test_a_dead_link_is_given_up_after_a_minute(bench: Bench) -> None:
    waits = iter(range(200))

    def wait(timeout_s: float) -> list[control.FromNetwork]:
        bench.clock.time += timeout_s
        next(waits)
        return []

    bench.ear.poll = wait  # type: ignore[method-assign]
    with pytest.raises(UnreachableError, match="within a minute") as caught:
        bench.volunteer.run(bench.ear)
    assert "join link" in caught.value.remedy


def test_parked_it_keeps_what_is_finished_and_says_nothing_of_the_rest(bench: Bench) -> None:
    bench.introduce()
    bench.offer(0)
    bench.turns(3)
    said = len(bench.ear.published)
    bench.volunteer.park()
    assert not isinstance(bench.volunteer.turn(wait_s=0.0), Wait)
    assert len(bench.ear.published) == said
    assert sum(bench.progress[-1].groups.values()) == said
