"""The list of a copy: each file of the run folder with its size and the digests of its pieces. Pure.

A follower compares it with what it holds and asks for the other pieces. The list comes from the learner over a
connection that proves its key; still no path in it may leave the folder, and no size is believed beyond the limits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.digests import DIGEST_BYTES, Digest, chunk_digest
from p2prl.protocol.wire_codec import Wire, decode, encode
from p2prl.swarm.following import FOLLOW_PIECE_BYTES

MOST_FILES = 16_384
"""Files of a copy: a run folder has some hundred."""

MOST_LIST_BYTES = 64 * 1024 * 1024
"""Size of a list: with it, a copy has at most 412 GB."""

_MOST_HEAD_BYTES = 1_024
_MOST_DEPTH = 6
_MOST_PATH = 255
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")

OWN_NAMES = frozenset(
    {
        "export",
        "following",
        "host-plan.json",
        "key.json",
        "lock",
        "run.manifest",
        "run.toml",
        "standby",
        "status.json",
        "uploads.json",
    }
)
"""First parts of paths that are never copied: what each machine's owner puts there, or the machine keeps for itself."""


class CopyHead(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What names a copy, and what is in it."""

    number: int
    """That of no other copy of this run; it grows by one from copy to copy of one start of the learner."""
    list_bytes: int
    list_digest: bytes
    taken_ms: int
    step: int
    version: int
    height: int
    """Entries of the ledger."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` for numbers that no copy has."""
        if not 0 < self.number < 1 << 53 or not 0 < self.list_bytes <= MOST_LIST_BYTES:
            raise RemoteProtocolError("copy: number or size of its list out of range")
        if len(self.list_digest) != DIGEST_BYTES:
            raise RemoteProtocolError("copy: no usable digest")


class CopiedFile(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One file."""

    path: str
    """Relative to the run folder, with `/`."""
    size_bytes: int
    pieces: bytes
    """Digests of its pieces, one after the other."""

    def digest_of(self, piece: int) -> Digest:
        """The digest of a piece."""
        return Digest(self.pieces[piece * DIGEST_BYTES : (piece + 1) * DIGEST_BYTES])

    @property
    def count(self) -> int:
        """Number of its pieces."""
        return count_of(self.size_bytes)


class CopyList(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The files of a copy."""

    files: tuple[CopiedFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)


def count_of(size_bytes: int) -> int:
    """Number of pieces of this many bytes."""
    return -(-size_bytes // FOLLOW_PIECE_BYTES)


def piece_span(size_bytes: int, piece: int) -> tuple[int, int]:
    """(begin, length) of a piece."""
    begin = piece * FOLLOW_PIECE_BYTES
    return begin, min(FOLLOW_PIECE_BYTES, size_bytes - begin)


def digests_of(pieces: Iterable[bytes]) -> Iterator[Digest]:
    """The digest of each piece."""
    return (chunk_digest(piece) for piece in pieces)


def read_head(raw: bytes) -> CopyHead:
    """Decode a head. Raises `RemoteProtocolError`."""
    head = decode(raw, CopyHead, limit_bytes=_MOST_HEAD_BYTES)
    head.check()
    return head


def read_list(raw: bytes, head: CopyHead) -> CopyList:
    """Decode the list of a copy, which must be the one that its head names. Raises `RemoteProtocolError`."""
    if len(raw) != head.list_bytes or chunk_digest(raw) != head.list_digest:
        raise RemoteProtocolError("copy: its list is not the one that its head names")
    listed = decode(raw, CopyList, limit_bytes=MOST_LIST_BYTES)
    if len(listed.files) > MOST_FILES:
        raise RemoteProtocolError(f"copy: more than {MOST_FILES} files")
    paths = [file.path for file in listed.files]
    if len({path.lower() for path in paths}) != len(paths):
        raise RemoteProtocolError("copy: a path is listed twice")
    folders = {"/".join(path.lower().split("/")[:depth]) for path in paths for depth in range(1, path.count("/") + 1)}
    if folders & {path.lower() for path in paths}:
        raise RemoteProtocolError("copy: a file is listed as a folder too")
    for file in listed.files:
        _check_path(file.path)
        if file.size_bytes < 0 or len(file.pieces) != file.count * DIGEST_BYTES:
            raise RemoteProtocolError(f"copy: {file.path} does not have a digest a piece")
    return listed


def write_list(listed: CopyList) -> bytes:
    """Encode a list."""
    return encode(listed)


def is_copied(path: str) -> bool:
    """Whether a path of the run folder belongs into a copy."""
    parts = path.split("/")
    return (
        len(path) <= _MOST_PATH
        and len(parts) <= _MOST_DEPTH
        and parts[0].lower() not in OWN_NAMES
        and all(_PART.fullmatch(part) and not part.endswith((".new", ".part")) for part in parts)
    )


def _check_path(path: str) -> None:
    if not is_copied(path):
        raise RemoteProtocolError(f"copy: {path[:80]!r} is no path of a copy")
