"""A validator's own ledger: one receipt for a slot, one signer, one history, and a bound on its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.cli.views.status_view import worker_lines
from p2prl.errors import ConfigError, IntegrityError, RemoteProtocolError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import Receipts
from p2prl.protocol.signed_group import SignedGroup, read_group
from p2prl.scoreboard.certificate import issue
from p2prl.scoreboard.documents.api_views import run_document
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.run_folder_source import RunFolderSource
from p2prl.scoreboard.ledger_dump import verify_dump, verify_source, write_dump
from p2prl.scoreboard.web.page import PageRequest, render_page
from p2prl.validator.own_ledger import GoodGroup, OwnLedger
from p2prl_lab.testing.protocol_swarm import group_of
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, identity, sample_run

RUN = LedgerWriter()
ME, ANN, BOB = identity("validator"), identity("ann"), identity("bob")


class HandClock:
    def __init__(self) -> None:
        self.time = RUN.now

    def now(self) -> float:
        self.time += 1.0
        return self.time


def opened(path: Path, *, key: Identity = ME, run: Digest = RUN.run, max_bytes: int | None = None) -> OwnLedger:
    ledger = OwnLedger(key, run, HandClock())
    ledger.begin(path, max_bytes=max_bytes)
    return ledger


def signed(peer: Identity, slot: int, *, policy: bytes = bytes(32)) -> SignedGroup:
    return read_group(seal(peer, group_of(slot, policy=policy), run=RUN.run, now=RUN.now))


def good(peer: Identity, slot: int, **changes: bytes) -> GoodGroup:
    return GoodGroup(signed(peer, slot, **changes), tokens=10 + slot, reward=0.5)


def board_of(path: Path, *, key: Identity = ME) -> BoardState:
    source = RunFolderSource(path, RUN.manifest_raw, validator=key.public_key)
    snapshot = source.snapshot()
    source.close()
    assert snapshot.incident is None, snapshot.incident
    assert snapshot.board is not None
    return snapshot.board


def test_each_slot_has_one_receipt_and_its_tokens_are_credited_once(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    ledger = opened(path)
    assert ledger.enter([good(ANN, 0), good(ANN, 1), good(BOB, 0)], step=3) == 3
    assert ledger.enter([good(ANN, 0), good(ANN, 2)], step=3) == 1, "the same group again"
    assert ledger.enter([good(ANN, 1, policy=b"p" * 32)], step=4) == 0, "another group of a slot that was paid"
    assert ledger.enter([good(BOB, 5), good(BOB, 5, policy=b"p" * 32)], step=4) == 1, "two groups of one slot at once"
    ledger.close()
    ledger = opened(path)
    assert (ledger.groups, ledger.tokens) == (5, 10 + 11 + 10 + 12 + 15)
    assert ledger.holds(signed(ANN, 1).digest)
    assert not ledger.holds(signed(ANN, 1, policy=b"p" * 32).digest)
    assert ledger.enter([good(ANN, 0), good(BOB, 5)], step=5) == 0, "after a restart too"
    ledger.close()
    board = board_of(path)
    paid = {key: row.tokens for key, row in board.people.items()}
    assert paid == {ANN.public_key: 33, BOB.public_key: 25}
    assert sum(row.verified_groups for row in board.people.values()) == 5


def test_its_head_is_signed_with_every_entry_and_says_when_the_run_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    ledger = opened(path)
    source = None
    for slot in range(3):
        ledger.enter([good(ANN, slot)], step=slot)
        source = source or RunFolderSource(path, RUN.manifest_raw, validator=ME.public_key)
        snapshot = source.snapshot()
        assert snapshot.board is not None
        assert snapshot.signed_height == snapshot.board.height == slot + 1
        assert not snapshot.finished
    assert source is not None
    ledger.end(step=9)
    assert source.snapshot().finished
    whole = verify_source(source)
    assert (whole.is_whole, whole.is_validators, whole.signer) == (True, True, ME.public_key)
    source.close()
    ledger.close()


def test_nobody_passes_it_off_as_the_learners_or_as_anothers(tmp_path: Path) -> None:
    path, dump = tmp_path / "own.db", tmp_path / "own.ledger"
    ledger = opened(path)
    ledger.enter([good(ANN, 0)], step=1)
    source = RunFolderSource(path, RUN.manifest_raw, validator=ME.public_key)
    write_dump(source, dump)
    source.close()
    assert verify_dump(dump, validator=ME.public_key).totals.verified_groups == 1
    for other in (b"", RUN.learner.public_key, BOB.public_key):  # empty: the learner's
        with pytest.raises((IntegrityError, RemoteProtocolError)):
            verify_dump(dump, validator=other)
    forged = seal(BOB, Receipts(1, ()), run=RUN.run, now=RUN.now)
    with ledger._ledger.transaction("a test"):
        ledger._ledger.append(forged)
    ledger.close()
    source = RunFolderSource(path, RUN.manifest_raw, validator=ME.public_key)
    incident = source.snapshot().incident
    assert incident is not None
    assert "entry 1 of the ledger is broken" in incident
    source.close()


def test_the_learners_ledger_is_not_a_validators(tmp_path: Path) -> None:
    dump = tmp_path / "learners.ledger"
    writer = sample_run(0, steps=2)
    writer.write_journal(tmp_path / "journal.db").close()
    source = RunFolderSource(tmp_path / "journal.db", writer.manifest_raw)
    write_dump(source, dump)
    source.close()
    assert not verify_dump(dump).is_validators
    with pytest.raises((IntegrityError, RemoteProtocolError)):
        verify_dump(dump, validator=ME.public_key)


def test_a_file_of_another_key_or_run_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    ledger = opened(path)
    ledger.enter([good(ANN, 0)], step=1)
    ledger.close()
    with pytest.raises(ConfigError, match="another key or run"):
        opened(path, key=BOB)
    with pytest.raises(ConfigError, match="another key or run"):
        opened(path, run=Digest(b"r" * 32))
    assert board_of(path).people[ANN.public_key].verified_groups == 1


def test_a_full_file_takes_no_more_receipts(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    ledger = opened(path, max_bytes=120_000)
    slots = 0
    while ledger.enter([good(ANN, slots * 50 + k) for k in range(50)], step=1):
        slots += 1
        assert slots < 100
    assert ledger.is_full
    ledger.close()
    assert slots > 3
    assert 120_000 <= path.stat().st_size < 150_000
    for most, is_full in ((path.stat().st_size, True), (path.stat().st_size + 1, False), (None, False)):
        ledger = opened(path, max_bytes=most)
        assert ledger.is_full is is_full
        ledger.close()
    assert board_of(path).people[ANN.public_key].verified_groups == slots * 50


def test_pages_and_status_say_whose_receipts_they_are_and_no_certificate_is_made(tmp_path: Path) -> None:
    path = tmp_path / "own.db"
    ledger = opened(path)
    ledger.enter([good(ANN, 0)], step=1)
    ledger.close()
    source = RunFolderSource(path, RUN.manifest_raw, validator=ME.public_key)
    snapshot = source.snapshot()
    document = run_document(snapshot).ledger
    assert (document.signer, document.validators_own) == (ME.peer_id, True)
    page = render_page(snapshot, PageRequest())
    assert f"the receipts of one validator,</strong> <code>{ME.peer_id}</code>" in page
    assert f"ledger verify run.ledger --validator {ME.peer_id}" in page
    with pytest.raises(ConfigError, match="a validator's own ledger"):
        issue(snapshot, ANN.peer_id, ANN, now_ms=0)
    source.close()
    worker = {"role": "validator", "own_receipts": 1, "own_tokens": 10, "groups_replayed": 1}
    assert any("1 receipt, 10 tokens, signed by this key" in line for line in worker_lines(worker, now=0.0))


def test_the_learners_page_names_the_learner() -> None:
    snapshot = MemorySource(sample_run(0, steps=2)).snapshot()
    document = run_document(snapshot).ledger
    assert (document.signer, document.validators_own) == (RUN.learner.peer_id, False)
    page = render_page(snapshot, PageRequest())
    assert "one validator" not in page
    assert "--validator" not in page
