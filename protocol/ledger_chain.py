"""The ledger: a hash chain of receipts, verdicts, checks of these and owners' statements. Every entry names the last.

An entry holds one signed envelope: the learner's receipts or checks of verdicts, a validator's verdict, a machine's
delegation, an owner's revocation or its membership in a team. Its digest covers its height, the digest of the entry
before and the envelope. A signed `LedgerHead` fixes a height; two different heads of one height prove equivocation. The
leaderboard is a fold over the entries that anyone can recompute.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES, Digest, digest
from p2prl.protocol.envelope import Opened, open_envelope
from p2prl.protocol.kinds import Kind
from p2prl.protocol.membership_statements import OwnersStatement
from p2prl.protocol.wire_codec import Wire, decode, encode

GENESIS = Digest(bytes(DIGEST_BYTES))
"""`previous` of the first entry."""

OWNERS_STATEMENTS = (Kind.DELEGATION, Kind.REVOCATION, Kind.MEMBERSHIP)
"""Kinds of `OwnersStatement`."""

LEDGER_KINDS = (Kind.RECEIPTS, Kind.VERDICT, Kind.VERDICT_CHECKS, *OWNERS_STATEMENTS)
"""Kinds of messages that an entry may hold."""

_ENTRY_LIMIT = limits.MAX_ENVELOPE_BYTES + 256


class LedgerEntry(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One entry of the chain. Heights count from 0."""

    height: int
    previous: bytes
    envelope: bytes


def entry_digest(raw: bytes) -> Digest:
    """Name of an entry: a digest of its exact bytes."""
    return digest("p2prl/ledger-entry/v1", raw)


def append(height: int, previous: Digest, envelope: bytes) -> tuple[bytes, Digest]:
    """Encode an entry; return its bytes and the chain's new head."""
    raw = encode(LedgerEntry(height, previous, envelope))
    return raw, entry_digest(raw)


def follow(raw: bytes, *, height: int, head: Digest, run: bytes, learner: bytes) -> tuple[Opened, Digest]:
    """Check that `raw` is entry number `height` on top of `head`; return its opened envelope and the new head.

    Receipts and checks of verdicts must come from the learner, a delegation from the machine it is about; verdicts,
    revocations and memberships may come from any peer. Raises `IntegrityError` if the chain is broken and
    `RemoteProtocolError` if the entry or its envelope is malformed.
    """
    entry, new_head = link(raw, height=height, head=head)
    opened = open_envelope(entry.envelope, now=None)
    if opened.kind not in LEDGER_KINDS or opened.run != run:
        raise RemoteProtocolError(f"ledger: a {opened.kind.name.lower()} of another run does not belong here")
    if opened.kind in (Kind.RECEIPTS, Kind.VERDICT_CHECKS) and opened.author != learner:
        raise RemoteProtocolError("ledger: receipts or checks that the learner did not sign")
    if isinstance(opened.body, OwnersStatement):
        opened.body.check_sent_by(opened.author)
    return opened, new_head


def link(raw: bytes, *, height: int, head: Digest) -> tuple[LedgerEntry, Digest]:
    """The entry in `raw` and the new head, if it is number `height` on top of `head`. Its envelope is not opened.

    Raises as `follow`. A signed head of a later entry proves this one, since each names the one before.
    """
    entry = decode(raw, LedgerEntry, limit_bytes=_ENTRY_LIMIT)
    if entry.height != height or entry.previous != head:
        raise IntegrityError(f"ledger: entry {entry.height} does not follow entry {height - 1}")
    return entry, entry_digest(raw)


def page_of(entries: Sequence[bytes], *, limit_bytes: int = limits.MAX_CONTROL_FRAME_BYTES // 2) -> tuple[bytes, ...]:
    """The longest prefix for one reply: at least one entry, at most the protocol's count, about `limit_bytes`."""
    page: list[bytes] = []
    size = 0
    for entry in entries[: limits.MAX_LEDGER_ENTRIES_PER_REPLY]:
        size += len(entry)
        if page and size > limit_bytes:
            break
        page.append(entry)
    return tuple(page)
