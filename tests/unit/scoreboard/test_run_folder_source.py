"""Run folder source: follows the journal without blocking the learner, and stops at a broken entry."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.errors import MachineError, RemoteProtocolError
from p2prl.learner.journal.journal import Journal
from p2prl.protocol.envelope import seal
from p2prl.protocol.ledger_chain import entry_digest
from p2prl.scoreboard.ledger.run_folder_source import RunFolderSource
from p2prl_lab.testing.sample_ledgers import LedgerWriter, identity, receipt, sample_run


def test_follows_the_journal_while_the_learner_writes(tmp_path: Path) -> None:
    writer = sample_run(0, steps=5)
    journal = Journal(tmp_path / "journal.db")
    with journal.transaction():
        for envelope in writer.envelopes[:6]:
            journal.ledger.append(envelope)
    source = RunFolderSource(tmp_path / "journal.db", writer.manifest_raw, planned_updates=lambda: 7)
    first = source.snapshot()
    assert first.board is not None
    assert first.board.height == 6
    assert first.learner_step is None
    with journal.transaction():
        during = source.snapshot()  # inside the learner's write transaction
        for envelope in writer.envelopes[6:]:
            journal.ledger.append(envelope)
        journal.batches.begin(6, [])
        journal.policies.add(6, 7, b"raw")
    after = source.snapshot()
    assert during.board == first.board
    assert after.board is not None
    assert (after.board.height, after.board.head) == (journal.ledger.height, journal.ledger.head)
    assert (after.policy_version, after.learner_step, after.finished) == (6, 7, True)
    assert source.entries(0, 99) == writer.entries
    with journal.transaction():  # a board that reads does not block the learner's writes
        source.snapshot()
        journal.policies.add(7, 8, b"raw")
    source.close()
    journal.close()


def test_an_absent_learner_was_last_heard_of_at_its_newest_report_or_receipts(tmp_path: Path) -> None:
    writer = sample_run(0, steps=2)
    writer.write_journal(tmp_path / "journal.db").close()
    reports = iter((None, writer.now + 9, 0.0))
    source = RunFolderSource(tmp_path / "journal.db", writer.manifest_raw, offline_since=lambda: next(reports))
    board = source.snapshot().board
    assert board is not None
    newest_ms = board.newest_ms()
    assert newest_ms is not None
    assert source.snapshot().learner_offline_since == writer.now + 9
    assert source.snapshot().learner_offline_since == newest_ms / 1000
    source.close()


def test_evaluations_are_those_of_the_learner(tmp_path: Path) -> None:
    writer = sample_run(0, steps=2)
    writer.write_journal(tmp_path / "journal.db").close()
    results = [{"version": 0}]
    source = RunFolderSource(tmp_path / "journal.db", writer.manifest_raw, evaluations=lambda: results)
    assert source.snapshot().evaluations == ({"version": 0},)
    results.append({"version": 10})
    assert source.snapshot().evaluations == ({"version": 0}, {"version": 10})
    source.close()


def test_writes_nothing(tmp_path: Path) -> None:
    writer = sample_run(0, steps=2)
    writer.write_journal(tmp_path / "journal.db").close()
    before = (tmp_path / "journal.db").read_bytes()
    source = RunFolderSource(tmp_path / "journal.db", writer.manifest_raw)
    source.snapshot()
    source.close()
    assert (tmp_path / "journal.db").read_bytes() == before


def test_a_broken_entry_stops_the_count_and_is_named(tmp_path: Path) -> None:
    writer = sample_run(0, steps=4)
    broken = bytearray(writer.entries[5])
    broken[len(broken) // 2] ^= 1
    db = writer.write_journal(tmp_path / "journal.db")
    db.execute("UPDATE ledger SET raw = ? WHERE height = 5", (bytes(broken),))
    source = RunFolderSource(tmp_path / "journal.db", writer.manifest_raw)
    snapshot = source.snapshot()
    assert snapshot.board is not None
    assert snapshot.board.height == 5
    assert snapshot.incident is not None
    assert "entry 5" in snapshot.incident
    assert source.entries(0, 99) == writer.entries[:5]
    source.close()
    db.close()


def test_the_newest_signed_head_covers_what_was_signed(tmp_path: Path) -> None:
    writer = sample_run(0, steps=4)
    signed = writer.signed_head(height=len(writer.entries) - 1, head=entry_digest(writer.entries[-2]))
    db = writer.write_journal(tmp_path / "journal.db", signed_head=signed)
    source = RunFolderSource(tmp_path / "journal.db", writer.manifest_raw)
    snapshot = source.snapshot()
    assert (snapshot.signed_height, snapshot.signed_head) == (len(writer.entries) - 1, signed)
    newer = writer.signed_head()
    db.execute("UPDATE ledger_head SET raw = ?", (newer,))
    assert source.snapshot().signed_head == newer
    assert source.snapshot().incident is None
    source.close()
    db.close()


@pytest.mark.parametrize(
    ("height", "change", "said"),
    [
        (18, "DELETE FROM ledger WHERE height >= 9", "ends at entry 9, but the learner signed 18"),
        (18, "SELECT 1", "entry 17 differs"),
        (9, "SELECT 1", "entry 8 differs"),
    ],
)
def test_a_journal_is_held_to_its_signed_head(tmp_path: Path, height: int, change: str, said: str) -> None:
    writer = sample_run(0, steps=6)
    db = writer.write_journal(tmp_path / "journal.db", signed_head=writer.signed_head(height=height, head=bytes(32)))
    db.execute(change)
    source = RunFolderSource(tmp_path / "journal.db", writer.manifest_raw)
    assert said in (source.snapshot().incident or "")
    assert source.snapshot().signed_height is None
    source.close()
    db.close()


def test_a_head_signed_by_somebody_else_is_refused(tmp_path: Path) -> None:
    writer, other = sample_run(0, steps=2), sample_run(0, steps=2, goal="another run")
    writer.write_journal(tmp_path / "journal.db", signed_head=other.signed_head()).close()
    with pytest.raises(RemoteProtocolError, match="not signed by this run's learner"):
        RunFolderSource(tmp_path / "journal.db", writer.manifest_raw)


def test_entries_stop_at_a_missing_row(tmp_path: Path) -> None:
    writer = sample_run(0, steps=4)
    db = writer.write_journal(tmp_path / "journal.db")
    db.execute("DELETE FROM ledger WHERE height = 3")
    source = RunFolderSource(tmp_path / "journal.db", writer.manifest_raw)
    assert source.entries(0, 99) == writer.entries[:3]
    source.close()
    db.close()


def test_no_journal_is_a_machine_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="no readable journal") as caught:
        RunFolderSource(tmp_path / "100% odd name?" / "journal.db", LedgerWriter().manifest_raw)
    assert caught.value.remedy
    assert not (tmp_path / "100% odd name?").exists()


def test_a_folder_with_an_odd_name_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "100% odd?name#x"
    folder.mkdir()
    writer = sample_run(0, steps=2)
    writer.write_journal(folder / "journal.db").close()
    source = RunFolderSource(folder / "journal.db", writer.manifest_raw)
    assert len(source.entries(0, 99)) == len(writer.entries)
    source.close()


def test_a_manifest_signed_by_somebody_else_is_refused(tmp_path: Path) -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, identity("ann")))
    writer.write_journal(tmp_path / "journal.db").close()
    forged = seal(identity("eve"), writer.manifest, run=bytes(32), now=writer.now)
    with pytest.raises(RemoteProtocolError, match="not signed by its learner"):
        RunFolderSource(tmp_path / "journal.db", forged)
