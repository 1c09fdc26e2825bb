"""A ledger in one file, and the recount anyone can make of it.

The file is a msgpack stream of byte strings: first a header (the msgpack array of format, run manifest envelope and
the learner's signed ledger head or nothing), then one per ledger entry. It holds nothing but signed bytes, so nobody
has to trust who exported it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from p2prl.errors import IntegrityError, MachineError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.wire_codec import Wire, decode, encode
from p2prl.scoreboard.api_schema import ContributorDocument, Totals, ValidatorDocument
from p2prl.scoreboard.ledger_fold import Board
from p2prl.scoreboard.ledger_sources import KnownRun, Snapshot, Source, open_run
from p2prl.scoreboard.views import known, leaderboard_document, run_document

FORMAT = "p2prl/ledger-export/v1"
"""First field of the header."""

_REMEDY = "Name a run folder, or a file that `p2prl ledger dump` wrote."

_READ_AT_ONCE = 256
_MAX_ITEM_BYTES = 2 * limits.MAX_ENVELOPE_BYTES
_LENGTH_BYTES = {b"\xc4": 1, b"\xc5": 2, b"\xc6": 4}
"""Width of the length behind each of msgpack's markers of a byte string."""


class _Header(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    format: str
    manifest: bytes
    head: bytes


_pack = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, kw_only=True, slots=True)
class Recount:
    """What a whole ledger says, counted again from its first entry."""

    run_id: str
    """Digest of the run manifest's envelope, hex; compare it with the join link's."""
    name: str
    height: int
    root: str
    """Digest of the newest entry, hex; compare it with a board's head."""
    signed_height: int | None
    """Height of the learner's signed head when the file holds one; it matched the chain."""
    totals: Totals
    people: list[ContributorDocument]
    validators: list[ValidatorDocument]


def export(source: Source, path: Path) -> int:
    """Write a source's ledger and newest signed head to `path`, whole or not at all; returns the entries written.

    Raises `MachineError` when the file cannot be written and
    `NotReadyError` when the run is not known yet.
    """
    snapshot = source.snapshot()
    run, board = known(snapshot)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(_pack(encode(_Header(FORMAT, run.raw, snapshot.signed_head))))
            height = 0
            for raw in _all_entries(source, board.height):
                file.write(_pack(raw))
                height += 1
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise MachineError(
            f"the ledger cannot be written to {path}: {error}", remedy="Choose another file or free some space."
        ) from error
    return height


def verify_export(path: Path, *, run: bytes | None = None) -> Recount:
    """Read an export and count it again from the first entry.

    `run` is the digest the join link carries; with it the file must be that run's. Raises `IntegrityError` naming the
    first entry that breaks the chain, `RemoteProtocolError` for a file that is no export, `MachineError` when it
    cannot be read.
    """
    try:
        with path.open("rb") as file:
            items = _items(file)
            known_run, head = _header(next(items, None))
            if run is not None and known_run.run != run:
                raise IntegrityError(
                    "this is the ledger of another run", remedy="Compare its run id with the join link's."
                )
            return recount(known_run, items, head=head)
    except OSError as error:
        raise MachineError(
            f"{path} cannot be read: {error}", remedy="Name a file that p2prl ledger dump wrote."
        ) from error


def verify_source(source: Source) -> Recount:
    """Count a source's ledger again from its first entry.

    Raises `IntegrityError` when the source found its ledger broken: a sound beginning is not a sound ledger.
    """
    snapshot = source.snapshot()
    run, board = known(snapshot)
    if snapshot.incident is not None:
        raise IntegrityError(snapshot.incident, remedy="Compare it with another board's export of the same run.")
    return recount(run, _all_entries(source, board.height), head=snapshot.signed_head)


def recount(run: KnownRun, entries: Iterator[bytes], *, head: bytes = b"") -> Recount:
    """Follow a chain from its first entry and add everything up; `head` is a signed head's envelope to hold it to."""
    board = run.empty_board()
    heights = _SignedHeight(run, head)
    for raw in entries:
        try:
            board.follow(raw)
        except (IntegrityError, RemoteProtocolError) as error:
            raise IntegrityError(f"entry {board.height} is broken: {error}") from error
        heights.compare(board)
    heights.finish(board)
    snapshot = Snapshot(
        run=run,
        board=board.state(),
        policy_version=None,
        learner_step=None,
        neighbours=None,
        signed_height=heights.height,
        signed_head=head,
        finished=False,
        incident=None,
        join_link="",
        total_steps=None,
    )
    everyone = max(len(board.state().people), len(board.state().validators), 1)
    return Recount(
        run_id=run.run.hex(),
        name=run.manifest.name,
        height=board.height,
        root=board.head.hex(),
        signed_height=heights.height,
        totals=run_document(snapshot).totals,
        people=leaderboard_document(snapshot, by="people", limit=everyone, cursor=None).people,
        validators=leaderboard_document(snapshot, by="validators", limit=everyone, cursor=None).validators,
    )


def _all_entries(source: Source, height: int) -> Iterator[bytes]:
    done = 0
    while done < height and (page := source.entries(done, min(_READ_AT_ONCE, height - done))):
        yield from page
        done += len(page)


class _SignedHeight:
    """Holds a chain to the learner's signed head."""

    def __init__(self, run: KnownRun, raw: bytes) -> None:
        self.height: int | None = None
        self._head = b""
        if raw:
            opened = open_envelope(raw, now=None)
            body = body_of(opened, LedgerHead)
            if opened.author != run.manifest.learner or opened.run != run.run:
                raise RemoteProtocolError("the export's signed head is not this run's learner's")
            self.height, self._head = body.height, body.head

    def compare(self, board: Board) -> None:
        """The chain has reached `board.height`."""
        if board.height == self.height and board.head != self._head:
            raise IntegrityError(f"entry {board.height - 1} is not the one the learner signed for")

    def finish(self, board: Board) -> None:
        """The chain has ended."""
        if self.height is not None and board.height < self.height:
            raise IntegrityError(f"the ledger ends at entry {board.height}, but the learner signed {self.height}")


def _items(file: BinaryIO) -> Iterator[bytes]:
    """The byte strings of the stream, each checked for size before it is read."""
    while marker := file.read(1):
        width = _LENGTH_BYTES.get(marker)
        if width is None:
            raise RemoteProtocolError(f"this file is not a ledger export ({FORMAT})", remedy=_REMEDY)
        size = int.from_bytes(_exactly(file, width), "big")
        if size > _MAX_ITEM_BYTES:
            raise RemoteProtocolError(f"the export holds an item of {size} bytes")
        yield _exactly(file, size)


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise IntegrityError("the export ends in the middle of an entry", remedy="Copy it or dump it again.")
    return data


def _header(item: bytes | None) -> tuple[KnownRun, bytes]:
    header = decode(item or b"", _Header, limit_bytes=_MAX_ITEM_BYTES)
    if header.format != FORMAT:
        raise RemoteProtocolError(f"this file is not a ledger export ({FORMAT})", remedy=_REMEDY)
    return open_run(header.manifest), header.head
