"""A validator's ledger of its own: its receipt of every group that it replayed, found good and scored.

So a run can have several ledgers, each the word of one key, while one learner trains and publishes. It is never
sent: peers take receipts from the run's learner alone. A reader of the file checks each entry against the validator's
key.

A slot is paid once, whatever is sent for it. Groups that fail get no entry: each would cost a stranger nothing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from p2prl.clock import Clock
from p2prl.errors import ConfigError, MachineError
from p2prl.net.storage import ledger_table
from p2prl.net.storage.ledger_table import LedgerTable
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import LedgerHead, Receipt, Receipts, ReceiptState
from p2prl.protocol.signed_group import SignedGroup

FILE_NAME = "own-ledger.db"
"""Beside the run's other files in the validator's folder."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS paid (peer BLOB NOT NULL, slot INTEGER NOT NULL, digest BLOB NOT NULL UNIQUE,
    PRIMARY KEY (peer, slot)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (only_row INTEGER PRIMARY KEY CHECK (only_row = 0), groups INTEGER NOT NULL,
    tokens INTEGER NOT NULL);
INSERT OR IGNORE INTO totals VALUES (0, 0, 0);
"""


@dataclass(frozen=True, slots=True)
class GoodGroup:
    """A group that passed its replay, and what it earns."""

    signed: SignedGroup
    tokens: int
    """Completion tokens replayed."""
    reward: float
    """Mean reward of its completions, as scored on this machine."""


class OwnLedger:
    """The chain of one validator's receipts in a file, from `begin` on. One process writes it; others may read."""

    def __init__(self, identity: Identity, run: Digest, clock: Clock) -> None:
        self._identity = identity
        self._run = run
        self._clock = clock
        self._max_bytes: int | None = None
        self._db: sqlite3.Connection | None = None
        self.groups = 0
        """Groups with a receipt."""
        self.tokens = 0
        """Completion tokens of them."""

    def begin(self, path: Path, *, max_bytes: int | None = None) -> None:
        """Open or create the file, which takes receipts up to this size: the machine's owner has accepted the run.

        Raises `MachineError`, and `ConfigError` for a file of another key or run.
        """
        self._max_bytes = max_bytes
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")  # a head must never be signed twice for one height
            self._db.executescript(f"BEGIN;{ledger_table.SCHEMA}{_SCHEMA}COMMIT;")
            self._ledger = LedgerTable(self._db)
            head = self._db.execute("SELECT raw FROM ledger_head").fetchone()
            self.groups, self.tokens = self._db.execute("SELECT groups, tokens FROM totals").fetchone()
        except (OSError, sqlite3.Error) as error:
            raise MachineError(
                f"cannot open the ledger {path}: {error}", remedy="Free some space or fix the directory's permissions."
            ) from error
        if head is not None:
            opened = open_envelope(bytes(head[0]), now=None)
            if opened.author != self._identity.public_key or opened.run != self._run:
                self.close()
                raise ConfigError(
                    f"{path} is the ledger of another key or run", remedy="Move the file away; a new one is begun."
                )

    def close(self) -> None:
        """Close the file; everything is already on disk."""
        if self._db is not None:
            self._db.close()

    @property
    def is_full(self) -> bool:
        """Whether the file has reached its bound."""
        return self._max_bytes is not None and self._size_bytes() >= self._max_bytes

    def holds(self, group: Digest) -> bool:
        """Whether this group has its receipt."""
        return self._file.execute("SELECT 1 FROM paid WHERE digest = ?", (group,)).fetchone() is not None

    def enter(self, groups: Sequence[GoodGroup], *, step: int) -> int:
        """Write one receipt for each group whose slot has none, and sign the new head. Returns how many were new.

        `step` is the newest learner step known here. Raises `MachineError` when the disk is full.
        """
        if self.is_full:
            return 0
        with self._ledger.transaction("the ledger of this validator"):
            new = [good for good in groups if self._take_slot(good.signed)]
            if new:
                self._ledger.append(self._sign(Receipts(step, tuple(map(_receipt_of, new)))))
                self._keep_head(step, finished=False)
                tokens = sum(good.tokens for good in new)
                self._file.execute("UPDATE totals SET groups = groups + ?, tokens = tokens + ?", (len(new), tokens))
        self.groups += len(new)
        self.tokens += sum(good.tokens for good in new)
        return len(new)

    def end(self, *, step: int) -> None:
        """Sign the last head: the run has ended, and nothing follows."""
        with self._ledger.transaction("the ledger of this validator"):
            self._keep_head(step, finished=True)

    @property
    def _file(self) -> sqlite3.Connection:
        assert self._db is not None, "no group comes before the run is accepted"
        return self._db

    def _take_slot(self, signed: SignedGroup) -> bool:
        taken = self._file.execute(
            "INSERT OR IGNORE INTO paid VALUES (?, ?, ?)", (signed.author, signed.group.slot, signed.digest)
        )
        return taken.rowcount == 1

    def _keep_head(self, step: int, *, finished: bool) -> None:
        self._ledger.keep_head(self._sign(LedgerHead(self._ledger.height, self._ledger.head, step, finished)))

    def _sign(self, body: Receipts | LedgerHead) -> bytes:
        return seal(self._identity, body, run=self._run, now=self._clock.now())

    def _size_bytes(self) -> int:
        query = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
        return int(self._file.execute(query).fetchone()[0])


def _receipt_of(good: GoodGroup) -> Receipt:
    group = good.signed.group
    return Receipt(
        group=good.signed.digest,
        peer=good.signed.author,
        version=group.version,
        slot=group.slot,
        state=int(ReceiptState.VERIFIED),
        reason="",
        tokens=good.tokens,
        completions=len(group.completions),
        reward=good.reward,
    )
