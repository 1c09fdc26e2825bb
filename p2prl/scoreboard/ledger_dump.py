"""A whole ledger in one file: write it, read it back, and recount it from the first entry.

The file is a msgpack stream of byte strings: first a header (the msgpack array of format, run manifest envelope, the
learner's signed ledger head or nothing, and countersignatures of heads), then one per ledger entry. Everything in it is
signed, so the peer that wrote it need not be trusted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec

from p2prl.disk_full import write_error
from p2prl.errors import ConfigError, IntegrityError, MachineError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.wire_codec import Wire, decode, encode
from p2prl.scoreboard.documents.api_views import require_run
from p2prl.scoreboard.ledger.known_run import KnownRun, open_run_manifest
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource, Snapshot
from p2prl.scoreboard.ledger.signed_head import Witness, open_witness
from p2prl.scoreboard.ledger_recount import Recount, recount

FORMAT = "p2prl/ledger-export/v2"
"""First field of the header."""

_OLD_FORMAT = FORMAT.replace("v2", "v1")
"""Of dumps without countersignatures."""

_MOST_COUNTERSIGNATURES = 1_024
"""Countersignatures read from a dump: four times those that a board keeps."""

_REMEDY = "Use a run folder, or a file written by `p2prl ledger dump`."

_READ_AT_ONCE = 256
"""Entries per query: a long read would keep a learner from truncating its write-ahead log."""

_MAX_ITEM_BYTES = 2 * limits.MAX_ENVELOPE_BYTES
"""An entry is an envelope and the previous digest; bounds a read whose length an untrusted field states."""

_LENGTH_BYTES = {b"\xc4": 1, b"\xc5": 2, b"\xc6": 4}
"""Width of the length after each of msgpack's markers of a byte string."""


class _Header(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    format: str
    manifest: bytes
    head: bytes
    countersignatures: tuple[bytes, ...] = ()


_pack = msgspec.msgpack.Encoder().encode


def dump_items(source: LedgerSource, *, snapshot: Snapshot | None = None) -> Iterator[bytes]:
    """Yield the file in pieces: the header, then each entry up to the height that the learner has signed, in `snapshot`
    or by default now: newer ones follow once it has signed them. All entries of a ledger without a signed head.

    Raises `NotReadyError` before the first piece when the run is not known yet.
    """
    snapshot = snapshot or source.snapshot()
    run, board = require_run(snapshot)
    witnesses = tuple(witness.raw for witness in source.witnesses())
    header = _pack(encode(_Header(FORMAT, run.raw, snapshot.signed_head, witnesses)))

    def items() -> Iterator[bytes]:
        yield header
        height = board.height if snapshot.signed_height is None else snapshot.signed_height
        yield from map(_pack, all_entries(source, height))

    return items()


def write_dump(source: LedgerSource, path: Path, *, snapshot: Snapshot | None = None) -> int:
    """Write a source's ledger and newest signed head to `path`, completely or not at all; returns the entries written.

    It ends where `dump_items` says. Raises `MachineError` when the file cannot be written and `NotReadyError` when the
    run is not known yet.
    """
    items = dump_items(source, snapshot=snapshot)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    written = 0
    try:
        with temporary.open("wb") as file:
            for item in items:
                file.write(item)
                written += 1
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if not path.parent.is_dir():
            raise MachineError(
                f"there is no folder {path.parent}", remedy="Make it, or choose another file."
            ) from error
        raise write_error(error, path) from error
    return written - 1  # without the header


def verify_dump(path: Path, *, run: bytes | None = None, validator: bytes = b"") -> Recount:
    """Read a dump and recount it from the first entry.

    `run` is the digest in the join link; with it the file must belong to that run. With `validator`, a public key, it
    must be that validator's own ledger, and otherwise the learner's. Raises `IntegrityError` naming the
    first entry that breaks the chain, `ConfigError` for a file that is not a dump, `MachineError` when it
    cannot be read.
    """
    try:
        with path.open("rb") as file:
            items = _items(file)
            known_run, head, witnesses = _header(next(items, None), validator)
            if run is not None and known_run.run != run:
                raise IntegrityError(
                    "this is the ledger of another run", remedy="Compare its run id with the join link's."
                )
            return recount(known_run, items, head=head, witnesses=witnesses)
    except OSError as error:
        raise MachineError(
            f"{path} cannot be read: {error.strerror}",
            remedy="Use a run folder, a join link, or a file written by `p2prl ledger dump`.",
        ) from error


def verify_source(source: LedgerSource) -> Recount:
    """Recount a source's ledger from its first entry.

    Raises `IntegrityError` when the source found its ledger broken, even if all entries before that point are valid.
    """
    snapshot = source.snapshot()
    run, board = require_run(snapshot)
    if snapshot.incident is not None:
        raise IntegrityError(snapshot.incident, remedy="Compare it with another board's dump of the same run.")
    entries = all_entries(source, board.height)
    return recount(run, entries, head=snapshot.signed_head, witnesses=source.witnesses())


def all_entries(source: LedgerSource, height: int) -> Iterator[bytes]:
    """A source's entries below a height, a few hundred at a time."""
    done = 0
    while done < height and (page := source.entries(done, min(_READ_AT_ONCE, height - done))):
        yield from page
        done += len(page)


def _items(file: BinaryIO) -> Iterator[bytes]:
    """The byte strings of the stream, each checked for size before it is read."""
    while marker := file.read(1):
        width = _LENGTH_BYTES.get(marker)
        if width is None:
            raise _not_a_dump()
        size = int.from_bytes(_exactly(file, width), "big")
        if size > _MAX_ITEM_BYTES:
            raise RemoteProtocolError(f"the dump holds an item of {size} bytes")
        yield _exactly(file, size)


def _exactly(file: BinaryIO, size: int) -> bytes:
    data = file.read(size)
    if len(data) < size:
        raise IntegrityError(
            "the dump ends in the middle of an entry", remedy="Copy the file again, or write a new dump."
        )
    return data


def _not_a_dump() -> ConfigError:
    return ConfigError(f"this file is not a ledger dump ({FORMAT})", remedy=_REMEDY)


def _header(item: bytes | None, validator: bytes) -> tuple[KnownRun, bytes, tuple[Witness, ...]]:
    try:
        header = decode(item or b"", _Header, limit_bytes=_MAX_ITEM_BYTES)
    except RemoteProtocolError as error:
        raise _not_a_dump() from error
    if header.format not in (FORMAT, _OLD_FORMAT) or len(header.countersignatures) > _MOST_COUNTERSIGNATURES:
        raise _not_a_dump()
    run = open_run_manifest(header.manifest, validator=validator)
    return run, header.head, tuple(open_witness(run, raw) for raw in header.countersignatures)
