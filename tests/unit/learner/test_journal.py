"""Journal: nothing is lost or recorded twice, with the file reopened between any two calls as after a crash."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.errors import MachineError
from p2prl.learner.journal import peers
from p2prl.learner.journal.groups import GroupState, StoredGroup
from p2prl.learner.journal.journal import Journal
from p2prl.learner.journal.verdicts import OwnReplay, WaitingVerdict
from p2prl.models.replay.probes import ReplayProbes
from p2prl.protocol import ledger_chain
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.ledger_messages import Receipts
from p2prl.protocol.standing import Standing
from tests.unit.learner.small_run import NOW, identity

LEARNER = identity("learner")
RUN = digest("p2prl/test-run", b"")


def group(number: int) -> StoredGroup:
    return StoredGroup(
        Digest(digest("p2prl/test-group", bytes([number]))), b"p" * 32, 0, number, b"raw%d" % number, b"", b""
    )


def receipts(step: int) -> bytes:
    return seal(LEARNER, Receipts(step, ()), run=RUN, now=NOW)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "journal.db"


def test_group_is_stored_once(path: Path) -> None:
    journal = Journal(path)
    assert journal.groups.store(group(1), NOW)
    assert not journal.groups.store(group(1), NOW + 5)
    journal.groups.mark_verified(group(1).digest, behavior=b"b", rewards=b"r")
    journal.close()
    journal = Journal(path)
    assert not journal.groups.store(group(1), NOW + 9)
    assert journal.groups.counts() == {"verified": 1}
    (stored,) = journal.groups.by_digest([group(1).digest])
    assert (stored.raw, stored.behavior, stored.rewards) == (b"raw1", b"b", b"r")
    journal.close()


STEPS = st.lists(st.sampled_from(["store", "verify", "refuse", "step", "checkpoint", "receipt", "crash"]), max_size=25)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_crash_between_any_two_calls_loses_nothing(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal.db"
    journal = Journal(path)
    states: dict[int, str] = {}
    batches: list[list[bytes]] = []
    entries: list[bytes] = []
    try:
        for step in steps:
            stored = [n for n, state in states.items() if state == "stored"]
            verified = [n for n, state in states.items() if state == "verified"]
            with journal.transaction():
                if step == "store":
                    assert journal.groups.store(group(len(states)), NOW)
                    states[len(states)] = "stored"
                elif step == "verify" and stored:
                    journal.groups.mark_verified(group(stored[0]).digest, behavior=b"b", rewards=b"r")
                    states[stored[0]] = "verified"
                elif step == "refuse" and stored:
                    journal.groups.mark_refused(group(stored[0]).digest, state=GroupState.REJECTED, reason="bad_tokens")
                    states[stored[0]] = "rejected"
                elif step == "step" and verified:
                    batches.append([group(n).digest for n in verified])
                    journal.batches.begin(len(batches) - 1, batches[-1])
                    states.update(dict.fromkeys(verified, "used"))
                elif step == "checkpoint":
                    journal.batches.forget_before(len(batches) - 1)
                elif step == "receipt":
                    entries.append(receipts(len(entries)))
                    journal.ledger.append(entries[-1])
            if step == "crash":
                journal.close()
                journal = Journal(path)
            assert journal.groups.counts() == {s: list(states.values()).count(s) for s in set(states.values())}
            assert [journal.batches.at_step(n) for n in range(len(batches) + 1)] == [*batches, None]
            assert journal.ledger.height == len(entries)
            if batches:  # the last batch can be replayed, bytes and all
                assert [(g.raw[:3], g.behavior) for g in journal.groups.by_digest(batches[-1])] == [
                    (b"raw", b"b")
                ] * len(batches[-1])
            head = ledger_chain.GENESIS
            for height, raw in enumerate(journal.ledger.entries(0, 100)):
                opened, head = ledger_chain.follow(raw, height=height, head=head, run=RUN, learner=LEARNER.public_key)
                assert opened.raw == entries[height]
            assert head == journal.ledger.head
    finally:
        journal.close()


def test_failed_transaction_leaves_no_trace(path: Path) -> None:
    journal = Journal(path)
    with journal.transaction():
        journal.ledger.append(receipts(0))
    before = (journal.ledger.height, journal.ledger.head)

    def fail() -> None:
        with journal.transaction():
            journal.groups.store(group(1), NOW)
            journal.ledger.append(receipts(1))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert journal.groups.counts() == {}
    assert (journal.ledger.height, journal.ledger.head) == before
    with journal.transaction():
        journal.ledger.append(receipts(2))
    assert journal.ledger.height == 2
    journal.close()


def test_no_version_or_update_is_recorded_twice(path: Path) -> None:
    journal = Journal(path)
    with journal.transaction():
        journal.policies.add(0, 0, b"first")
        journal.batches.begin(0, [group(1).digest])
    with pytest.raises(MachineError), journal.transaction():
        journal.policies.add(0, 0, b"second")
    with pytest.raises(MachineError), journal.transaction():
        journal.batches.begin(0, [group(2).digest])
    assert journal.policies.at_step(0) == b"first"
    assert journal.policies.at_step(1) is None
    assert journal.batches.at_step(0) == [group(1).digest]
    journal.close()


def test_policies_of_a_window(path: Path) -> None:
    journal = Journal(path)
    for version in range(4):
        journal.policies.add(version, 3 * version, b"raw%d" % version)
    assert journal.policies.since_step(6) == [b"raw2", b"raw3"]
    assert journal.policies.count() == 4
    assert journal.policies.was_published(2, envelope_digest(b"raw2"))
    assert not journal.policies.was_published(2, envelope_digest(b"raw3"))
    assert not journal.policies.was_published(9, envelope_digest(b"raw2"))
    journal.close()


def own_replay(number: int) -> OwnReplay:
    return OwnReplay("", number, ReplayProbes(b"l" * number, b"d" * 4))


def test_the_newest_replays_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2prl.learner.journal.verdicts.REPLAYS_KEPT", 3)
    journal = Journal(path)
    for number in range(5):
        journal.verdicts.keep_replay(group(number).digest, own_replay(number))
    kept = [journal.verdicts.replay_of(group(number).digest) for number in range(5)]
    assert kept == [None, None, *(own_replay(number) for number in range(2, 5))]
    journal.close()


def test_verdicts_are_counted_by_group_version_and_standing(path: Path) -> None:
    journal = Journal(path)
    table, one, two = journal.verdicts, group(1).digest, group(2).digest
    table.enter(b"v" * 32, one, 0, newcomer=True)
    table.enter(b"w" * 32, one, 0, newcomer=False)
    table.enter(b"v" * 32, two, 1, newcomer=True)
    table.wait(WaitingVerdict(b"x" * 32, True, b"raw"), one, 0)
    assert (table.entered_on(one, newcomers=True), table.entered_on(one, newcomers=False)) == (1, 1)
    assert [table.entered_of(b"v" * 32, version) for version in (0, 1, 2)] == [1, 1, 0]
    assert [table.entered_of_newcomers(version) for version in (0, 1, 2)] == [1, 1, 0]
    assert table.waiting_of_newcomers() == 1
    assert table.waiting_on(one) == [WaitingVerdict(b"x" * 32, True, b"raw")]
    assert [table.knows(key * 32, one) for key in (b"v", b"x", b"y")] == [True, True, False]
    table.drop_waiting(one)
    assert table.waiting_on(one) == []
    assert table.entered_on(one, newcomers=True) == 1, "what is in the ledger stays"
    table.set_standing(b"v" * 32, Standing(3.0, 1.0, NOW))
    journal.close()
    journal = Journal(path)
    assert journal.verdicts.standing(b"v" * 32) == Standing(3.0, 1.0, NOW)
    assert journal.verdicts.standing(b"w" * 32) == Standing()
    journal.close()


def test_groups_that_wait_are_listed_in_order_of_arrival(path: Path) -> None:
    journal = Journal(path)
    for number in range(20):
        journal.groups.store(group(number), NOW)
    for number, peer in enumerate((b"a" * 32, b"b" * 32, b"a" * 32), start=20):
        journal.groups.store(replace(group(number), peer=peer), NOW + number)
    assert [peer[:1] for _, peer, _, _ in journal.groups.waiting()] == [b"p"] * 20 + [b"a", b"b", b"a"]
    journal.groups.mark_verified(group(3).digest, behavior=b"", rewards=b"")
    assert len(journal.groups.waiting()) == 22
    assert journal.groups.knows(group(3).digest)
    assert not journal.groups.knows(group(30).digest)
    journal.close()


def test_peers_since_a_moment(path: Path) -> None:
    journal = Journal(path)
    arrivals = [(b"a", 0.0), (b"b", 10.0), (b"b", 20.0), (b"c", 20.0)]
    for number, (peer, after_s) in enumerate(arrivals):
        journal.groups.store(replace(group(number), peer=peer * 32), NOW + after_s)
    found = [journal.groups.peers_since(NOW + after_s) for after_s in (-1.0, 5.0, 15.0, 25.0)]
    assert found == [{peer * 32 for peer in peers} for peers in ((b"a", b"b", b"c"), (b"b", b"c"), (b"b", b"c"), ())]
    journal.close()


def test_full_disk_is_reported_and_loses_nothing(path: Path) -> None:
    journal = Journal(path)
    with journal.transaction():
        journal.groups.store(group(1), NOW)
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages}")  # SQLite then raises the same error as on a full disk
    big = StoredGroup(Digest(bytes(32)), b"p" * 32, 0, 9, bytes(1_000_000), b"", b"")
    with pytest.raises(MachineError, match="full") as caught, journal.transaction():
        journal.groups.store(big, NOW)
    assert "Free some space" in caught.value.remedy
    journal.close()
    journal = Journal(path)
    assert journal.groups.counts() == {"stored": 1}
    assert journal.groups.store(big, NOW)
    journal.close()


def test_history_of_a_peer_at_an_update_never_changes(path: Path) -> None:
    journal = Journal(path)
    for number in range(4):
        journal.groups.store(replace(group(number), peer=b"ab"[number % 2 : number % 2 + 1] * 32), NOW)
    journal.batches.begin(0, [group(0).digest, group(1).digest])
    journal.batches.begin(3, [group(2).digest])

    def history(peer: bytes, most: int = 9) -> list[int]:
        return [journal.batches.groups_trained(peer * 32, before_step=step, most=most) for step in range(6)]

    seen = history(b"a"), history(b"b"), history(b"c"), history(b"a", most=1)
    assert seen == ([0, 1, 1, 1, 2, 2], [0, 1, 1, 1, 1, 1], [0] * 6, [0, 1, 1, 1, 1, 1])
    journal.batches.begin(4, [group(3).digest])
    journal.batches.forget_before(4)
    assert history(b"b") == [0, 1, 1, 1, 1, 2], "a later batch changes nothing before it, nor does forgetting one"
    journal.close()


def test_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(b"not a database, but long enough to look like a header of one" * 40)
    with pytest.raises(MachineError, match="cannot open the journal"):
        Journal(path)


def test_another_process_can_read(path: Path) -> None:
    journal = Journal(path)
    with journal.transaction():
        journal.ledger.append(receipts(0))
    reader = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    assert reader.execute("SELECT COUNT(*) FROM ledger").fetchone() == (1,)
    reader.close()
    journal.close()


def test_history_has_what_passed_and_failed_by_peer_and_hour(path: Path) -> None:
    journal = Journal(path)
    for number in range(8):
        journal.groups.store(replace(group(number), peer=b"ab"[number % 2 : number % 2 + 1] * 32), NOW + 1000 * number)
    for number in (0, 2):
        journal.groups.mark_verified(group(number).digest, behavior=b"", rewards=b"")
    journal.groups.mark_unused(group(2).digest)
    for number, reason in ((1, "seed_mismatch"), (3, "engine_mismatch"), (4, "withheld_slots"), (5, "excluded")):
        journal.groups.mark_refused(group(number).digest, state=GroupState.REJECTED, reason=reason)
    journal.groups.mark_refused(group(6).digest, state=GroupState.EXPIRED, reason="too_stale")
    totals: dict[bytes, list[int]] = {}
    for peer, at, passed, failed in journal.groups.history():
        assert NOW <= at <= NOW + 6000
        counts = totals.setdefault(peer[:1], [0, 0])
        counts[0] += passed
        counts[1] += failed
    assert totals == {b"a": [2, 0], b"b": [0, 1]}
    times = [at for _, at, _, _ in journal.groups.history()]
    assert times == sorted(times)
    journal.close()


def test_only_old_refused_groups_are_forgotten(path: Path) -> None:
    journal = Journal(path)
    for number in range(4):
        journal.groups.store(group(number), NOW + number)
    for number, state in ((0, GroupState.REJECTED), (1, GroupState.EXPIRED), (3, GroupState.REJECTED)):
        journal.groups.mark_refused(group(number).digest, state=state, reason="too_stale")
    journal.groups.mark_verified(group(2).digest, behavior=b"", rewards=b"")
    journal.groups.forget_refused(NOW + 3)
    assert [journal.groups.knows(group(number).digest) for number in range(4)] == [False, False, True, True]
    journal.close()


def test_evidence_of_forgeries_is_kept_within_its_bounds(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_FORGERIES", 5)
    monkeypatch.setattr(peers, "MAX_EVIDENCE_BYTES", 250)
    journal = Journal(path)
    for number in range(8):
        peer = bytes([number % 2]) * 32
        for _ in range(2):
            journal.forgeries.add(group(number).digest, peer, NOW + number, envelope=bytes([number]) * 100)
    assert journal.forgeries.times() == [(bytes([number % 2]) * 32, NOW + number) for number in range(3, 8)]
    assert journal.forgeries.evidence(bytes([1]) * 32) == [bytes([7]) * 100]
    assert journal.forgeries.evidence(bytes([0]) * 32) == [bytes([6]) * 100]
    journal.close()
