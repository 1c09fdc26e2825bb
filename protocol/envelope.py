"""Signed envelopes: a message with its author, run and time, which any peer can relay and verify.

The signature covers a digest of the exact body bytes, under a domain string that names the message kind and its
version. A receiver verifies the body as received and never encodes it again. `open_envelope` checks size, signature and
schema, in this order.
"""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from p2prl.errors import RemoteProtocolError, StaleWorkError
from p2prl.protocol import limits
from p2prl.protocol.delegation import Delegation, Revocation
from p2prl.protocol.digests import DIGEST_BYTES, Digest, digest
from p2prl.protocol.identity import PUBLIC_KEY_BYTES, Identity, verify_raw
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import (
    Countersignature,
    LedgerHead,
    Receipts,
    StorageReceipt,
    Verdict,
    VerdictChecks,
)
from p2prl.protocol.manifests import PolicyManifest, RunManifest
from p2prl.protocol.membership_statements import Membership
from p2prl.protocol.peer_messages import Introduction, PeerRecord, Standby
from p2prl.protocol.policy_head import PolicyHead
from p2prl.protocol.rollout_group import GroupHeader, RolloutGroup
from p2prl.protocol.wire_codec import Wire, decode, encode

Body = TypeVar("Body", bound=Wire)

SIGNED_MESSAGES: dict[Kind, type[Wire]] = {
    Kind.RUN_MANIFEST: RunManifest,
    Kind.POLICY_MANIFEST: PolicyManifest,
    Kind.PEER_RECORD: PeerRecord,
    Kind.ROLLOUT_GROUP: RolloutGroup,
    Kind.STORAGE_RECEIPT: StorageReceipt,
    Kind.RECEIPTS: Receipts,
    Kind.VERDICT: Verdict,
    Kind.LEDGER_HEAD: LedgerHead,
    Kind.POLICY_HEAD: PolicyHead,
    Kind.INTRODUCTION: Introduction,
    Kind.GROUP_HEADER: GroupHeader,
    Kind.DELEGATION: Delegation,
    Kind.REVOCATION: Revocation,
    Kind.VERDICT_CHECKS: VerdictChecks,
    Kind.COUNTERSIGNATURE: Countersignature,
    Kind.MEMBERSHIP: Membership,
    Kind.STANDBY: Standby,
}
"""The struct of each signed message."""

DOMAINS: dict[Kind, str] = {
    Kind.RUN_MANIFEST: "p2prl/run-manifest/v1",
    Kind.POLICY_MANIFEST: "p2prl/policy-manifest/v1",
    Kind.PEER_RECORD: "p2prl/peer-record/v1",
    Kind.ROLLOUT_GROUP: "p2prl/rollout-group/v1",
    Kind.STORAGE_RECEIPT: "p2prl/storage-receipt/v1",
    Kind.RECEIPTS: "p2prl/receipts/v1",
    Kind.VERDICT: "p2prl/verdict/v1",
    Kind.LEDGER_HEAD: "p2prl/ledger-head/v1",
    Kind.POLICY_HEAD: "p2prl/policy-head/v1",
    Kind.INTRODUCTION: "p2prl/introduction/v1",
    Kind.GROUP_HEADER: "p2prl/group-header/v1",
    Kind.DELEGATION: "p2prl/delegation-consent/v1",
    Kind.REVOCATION: "p2prl/revocation-notice/v1",
    Kind.VERDICT_CHECKS: "p2prl/verdict-checks/v1",
    Kind.COUNTERSIGNATURE: "p2prl/countersignature/v1",
    Kind.MEMBERSHIP: "p2prl/membership-notice/v1",
    Kind.STANDBY: "p2prl/standby/v1",
}
"""The versioned domain of each signature. A new meaning takes a new string."""

AGELESS = frozenset({Kind.RUN_MANIFEST, Kind.LEDGER_HEAD, Kind.COUNTERSIGNATURE})
"""Kinds that are never too old: a ledger can be verified however long its learner has been away."""

NO_RUN = bytes(DIGEST_BYTES)
"""The run field of a run manifest's own envelope: it cannot contain its own digest."""

_KIND_OF = {body: kind for kind, body in SIGNED_MESSAGES.items()}


class Envelope(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The wire form. `run` is the digest of the run manifest's envelope."""

    kind: int
    run: bytes
    author: bytes
    sent_ms: int
    body: bytes
    signature: bytes


@dataclass(frozen=True, slots=True)
class Opened:
    """A verified envelope with its decoded body. `raw` are the bytes to relay; `digest` is their name."""

    raw: bytes
    digest: Digest
    kind: Kind
    run: bytes
    author: bytes
    sent_ms: int
    body: Wire


def envelope_digest(raw: bytes) -> Digest:
    """The name of an envelope: a digest of its exact bytes."""
    return digest("p2prl/envelope/v1", raw)


def seal(identity: Identity, body: Wire, *, run: bytes, now: float) -> bytes:
    """Sign `body` as `identity` for `run` and return the bytes to send. `now` is seconds since the epoch."""
    kind = _KIND_OF[type(body)]
    payload = encode(body)
    sent_ms = int(now * 1000)
    signature = identity.sign_raw(_signed_bytes(kind, run, identity.public_key, sent_ms, payload))
    return encode(Envelope(int(kind), run, identity.public_key, sent_ms, payload, signature))


def open_envelope(raw: bytes, *, now: float | None) -> Opened:
    """Verify and decode one envelope.

    `now` bounds its age (replay window, but for `AGELESS` kinds) and its lead (clock skew); `None` skips both, for
    envelopes from our own disk. Raises `RemoteProtocolError` for anything but a well-formed, correctly signed envelope,
    and `StaleWorkError` for one that is too old or dated in the future, which is nobody's fault: an honest relay may
    hold it a second too long.
    """
    opened = OPENINGS.get(raw)
    if now is not None and opened.kind is not Kind.RUN_MANIFEST:
        age_s = now - opened.sent_ms / 1000
        if age_s > limits.MAX_ENVELOPE_AGE_S and opened.kind not in AGELESS:
            raise StaleWorkError(f"envelope: {age_s / 86400:.1f} days old, past the replay window")
        if age_s < -limits.MAX_CLOCK_SKEW_S:
            raise StaleWorkError(f"envelope: dated {-age_s:.0f} s in the future; one of the two clocks is off")
    return opened


def body_of(opened: Opened, kind: type[Body]) -> Body:
    """The body as a `kind`; `RemoteProtocolError` when the envelope carries something else."""
    if not isinstance(opened.body, kind):
        raise RemoteProtocolError(f"expected a {kind.__name__}, got a {opened.kind.name.lower()}")
    return opened.body


_NUMBERS = frozenset(int(kind) for kind in SIGNED_MESSAGES)


def _opened(raw: bytes) -> Opened:
    envelope = decode(raw, Envelope, limit_bytes=limits.MAX_ENVELOPE_BYTES)
    # msgpack can write one value in several ways, and the signature does not cover the envelope's own framing. Without
    # this check, anybody could give a signed message a second digest: to evade deduplication, or to make one policy
    # manifest look like two and so frame the learner for equivocation.
    if encode(envelope) != raw:
        raise RemoteProtocolError("envelope: not in the one encoding that its digest names")
    if len(envelope.author) != PUBLIC_KEY_BYTES or len(envelope.run) != DIGEST_BYTES:
        raise RemoteProtocolError("envelope: author and run must have 32 bytes")
    if envelope.kind not in _NUMBERS:
        raise RemoteProtocolError(f"envelope: unknown kind {envelope.kind}")
    kind = Kind(envelope.kind)
    if not 0 <= envelope.sent_ms < 1 << 53:
        raise RemoteProtocolError("envelope: impossible time")
    signed = _signed_bytes(kind, envelope.run, envelope.author, envelope.sent_ms, envelope.body)
    if not verify_raw(envelope.author, signed, envelope.signature):
        raise RemoteProtocolError(f"envelope: wrong signature on a {kind.name.lower()}")
    body = decode(envelope.body, SIGNED_MESSAGES[kind], limit_bytes=limits.MAX_ENVELOPE_BYTES)
    return Opened(raw, envelope_digest(raw), kind, envelope.run, envelope.author, envelope.sent_ms, body)


def _signed_bytes(kind: Kind, run: bytes, author: bytes, sent_ms: int, body: bytes) -> bytes:
    return digest(DOMAINS[kind], run, author, sent_ms.to_bytes(8, "little"), body)


class Openings:
    """Envelopes opened lately, so that none is verified and decoded twice in a row: the directory's records are read
    again every half minute, and a simulated swarm opens each envelope once for all its peers."""

    def __init__(self, limit_bytes: int, open_raw: Callable[[bytes], Opened] = _opened) -> None:
        """`limit_bytes` bounds the sum of the envelopes as they came; decoded they take some times that. `open_raw`
        verifies and decodes; it raises `RemoteProtocolError`, and nothing is kept then."""
        self.limit_bytes = limit_bytes
        self._open = open_raw
        self._held: OrderedDict[bytes, Opened] = OrderedDict()
        self.held_bytes = 0

    def get(self, raw: bytes) -> Opened:
        """The envelope of these bytes."""
        opened, size = self._held.get(raw), len(raw)
        if opened is not None:
            with contextlib.suppress(KeyError):  # another thread has dropped it meanwhile
                self._held.move_to_end(raw)
            return opened
        opened = self._open(raw)
        # Of two threads that open the same envelope, `setdefault` lets one count it.
        if size <= self.limit_bytes // _LARGEST_SHARE and self._held.setdefault(raw, opened) is opened:
            self.held_bytes += size
            while self.held_bytes > self.limit_bytes and self._held:
                gone, _ = self._held.popitem(last=False)
                size = len(gone)
                self.held_bytes -= size
        return opened


_LARGEST_SHARE = 16
"""One envelope takes no more than this part of the openings kept: a large group must not displace all records."""

OPENINGS = Openings(1024 * 1024)
"""Those of this process: 2,500 records."""

assert set(DOMAINS) == set(SIGNED_MESSAGES), "every signed message has a domain"
