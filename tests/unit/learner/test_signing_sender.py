"""Signing: a ledger head is written down when it is signed, so that whoever reads the journal can hold it to it."""

from __future__ import annotations

from pathlib import Path

from p2prl.learner.journal.journal import Journal
from p2prl.learner.signing_sender import SigningSender
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.scoreboard.ledger.journal_reader import JournalReader
from p2prl_lab.testing.sample_ledgers import sample_run


class _Clock:
    def now(self) -> float:
        return 1_800_000_000.0


def test_the_newest_signed_head_is_in_the_journal(tmp_path: Path) -> None:
    writer = sample_run(0, steps=3)
    journal = Journal(tmp_path / "journal.db")
    sender = SigningSender(writer.learner, writer.run, journal, _Clock())
    reader = JournalReader(tmp_path / "journal.db")
    assert reader.signed_head() == b""
    for step, envelope in enumerate(writer.envelopes):
        with journal.transaction():
            journal.ledger.append(envelope)
        raw = sender.sign_ledger_head(step=step, finished=step == len(writer.envelopes) - 1)
        assert reader.signed_head() == raw
    head = body_of(open_envelope(raw, now=None), LedgerHead)
    assert head == LedgerHead(len(writer.entries), writer.head, len(writer.entries) - 1, True)
    journal.close()
    reader.close()
