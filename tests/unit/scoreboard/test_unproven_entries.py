"""Ledger pages of strangers: what they invent holds nobody up, is counted by nobody, and takes a bounded room."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from p2prl.net.process import control
from p2prl.protocol import ledger_chain, limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_chain import entry_digest
from p2prl.scoreboard.ledger.ledger_follower import LedgerFollower
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from p2prl.swarm import signals
from p2prl_lab.testing.sample_ledgers import LedgerWriter, identity, receipt, sample_run, verdict_on

WRITER = sample_run(0, steps=10)
EVE = identity("eve")
PAGE = 4
"""Entries of a page here, so that a short ledger has many."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    opened = LedgerStore(tmp_path / "ledger.db", run=WRITER.run)
    yield opened
    opened.close()


class Reader:
    """A follower whose questions are answered on the spot, by the learner or by a stranger."""

    def __init__(self, store: LedgerStore, *, of: LedgerWriter = WRITER, max_bytes: int | None = None) -> None:
        self.store, self.of, self.now = store, of, 0.0
        self.follower = LedgerFollower(store, run=WRITER.run, max_bytes=max_bytes)
        self.follower.receive(control.RunKnown(WRITER.manifest_raw), 0.0)

    @property
    def height(self) -> int:
        board = self.follower.snapshot().board
        return 0 if board is None else board.height

    def signed(self, at: int) -> None:
        """The learner's head of this many entries arrives."""
        head = self.of.signed_head(height=at, head=entry_digest(self.of.entries[at - 1]))
        self.follower.receive(control.EnvelopeArrived(head), self.now)

    def question(self) -> int | None:
        """Ten seconds later: the height that is asked for."""
        self.now += 10.0
        asked = [m.from_height for m in self.follower.handle_timer(self.now) if isinstance(m, signals.AskLedger)]
        return asked[0] if asked else None

    def answer(self, at: int, entries: list[bytes]) -> None:
        self.follower.receive(signals.LedgerArrived(at, tuple(entries)), self.now)

    def ask_learner(self, *, known: int) -> None:
        """Ask the learner, whose ledger has this many entries."""
        if (at := self.question()) is not None:
            self.answer(at, self.of.entries[at : min(known, at + PAGE)])

    def invented(self, count: int, by: Identity = EVE) -> list[bytes]:
        """Entries that follow those stored: verdicts that anybody may sign."""
        at, made = self.store.height, list[bytes]()
        head = entry_digest(self.store.entries(at - 1, 1)[0]) if at else ledger_chain.GENESIS
        for number in range(count):
            envelope = LedgerWriter().add(by, verdict_on(receipt(10_000 + at + number, identity("volunteer 0"))))
            raw, head = ledger_chain.append(at + number, Digest(head), envelope)
            made.append(raw)
        return made


@pytest.mark.parametrize("count", [1, 2, 3, 60])
@pytest.mark.parametrize("gap", [1, 2, 5])
def test_invented_entries_hold_nobody_up(store: LedgerStore, count: int, gap: int) -> None:
    reader = Reader(store)
    reader.ask_learner(known=4)
    reader.signed(4)
    assert reader.height == 4
    for known in range(4 + gap, len(WRITER.entries) + 1, gap):
        reader.answer(store.height, reader.invented(count))
        reader.signed(known)
        for _ in range(2 + known // PAGE):
            reader.ask_learner(known=known)
        assert reader.height == known
    assert store.entries(0, 999)[: reader.height] == WRITER.entries[: reader.height]
    assert reader.follower.snapshot().incident is None


@pytest.mark.parametrize("seed", range(5))
def test_a_long_ledger_arrives_although_one_answer_in_three_is_false(store: LedgerStore, seed: int) -> None:
    reader, rng, end = Reader(store), random.Random(seed), len(WRITER.entries)
    reader.signed(end)
    questions = 0
    while reader.height < end:
        at = reader.question()
        assert at is not None
        questions += 1
        if rng.random() < 1 / 3:
            false = rng.choice([[b"junk"], reader.invented(rng.randint(1, 3 * PAGE)), WRITER.entries[:PAGE]])
            reader.answer(at, false)
        else:
            reader.answer(at, WRITER.entries[at : at + PAGE])
    assert questions < 10 * end / PAGE
    assert store.entries(0, 999) == WRITER.entries


def test_a_false_answer_takes_back_one_page_and_nothing_that_is_proven(store: LedgerStore) -> None:
    reader = Reader(store)
    for _ in range(4):
        reader.ask_learner(known=99)
    reader.signed(2 * PAGE)
    for expected in (3, 2, 2, 2):
        reader.answer(store.height, [b"junk"])
        assert store.height == expected * PAGE
    assert reader.height == 2 * PAGE


def test_a_page_that_was_not_asked_for_last_changes_nothing(store: LedgerStore) -> None:
    reader = Reader(store)
    reader.ask_learner(known=99)
    for at, entries in ((0, WRITER.entries[:PAGE]), (0, []), (PAGE, []), (PAGE + 1, WRITER.entries[PAGE + 1 :])):
        reader.answer(at, list(entries))
        assert store.entries(0, 999) == WRITER.entries[:PAGE]


def test_invented_entries_take_a_bounded_room_and_free_it(store: LedgerStore) -> None:
    reader = Reader(store, max_bytes=40_000)
    reader.signed(len(WRITER.entries))
    while reader.height < len(WRITER.entries):
        reader.ask_learner(known=99)
    assert store.size_bytes < 40_000
    for _ in range(100):
        reader.answer(store.height, reader.invented(PAGE))
    invented = store.height - len(WRITER.entries)
    assert 0 < invented <= 16 * PAGE
    assert store.size_bytes == sum(map(len, store.entries(0, 9_999)))
    longer = LedgerWriter()
    for envelope in WRITER.envelopes:
        longer.append(envelope)
    for number in range(3):
        longer.receipts(99, receipt(5_000 + number, identity("volunteer 0")))
    reader.of = longer
    reader.signed(len(longer.entries))
    for _ in range(2 * invented):
        reader.ask_learner(known=999)
    assert store.entries(0, 9_999) == longer.entries


def test_an_entry_that_breaks_a_rule_is_not_counted_though_the_learner_signed_it(store: LedgerStore) -> None:
    broken = LedgerWriter()
    for envelope in WRITER.envelopes[:5]:
        broken.append(envelope)
    broken.append(b"no envelope")
    broken.append(WRITER.envelopes[6])
    reader = Reader(store, of=broken)
    reader.signed(7)
    for _ in range(4):
        reader.ask_learner(known=7)
    assert reader.height == 5
    assert store.height <= 7


def test_a_stored_chain_that_is_only_partly_proven_goes_on_after_a_restart(store: LedgerStore) -> None:
    reader = Reader(store)
    reader.signed(3)
    for _ in range(3):
        reader.ask_learner(known=99)
    reader.answer(store.height, reader.invented(limits.MAX_LEDGER_ENTRIES_PER_REPLY))
    again = Reader(store)
    assert again.height == 3
    again.signed(len(WRITER.entries))
    for _ in range(99):
        again.ask_learner(known=99)
    assert again.height == len(WRITER.entries)


def test_a_download_shows_its_progress_before_a_head_proves_it(store: LedgerStore) -> None:
    reader = Reader(store)
    reader.signed(len(WRITER.entries))
    for pages in range(1, 4):
        reader.ask_learner(known=99)
        assert (reader.height, reader.follower.snapshot().unproven_entries) == (0, pages * PAGE)
