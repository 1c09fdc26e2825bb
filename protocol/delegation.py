"""Delegation of a machine's work to its owner, and its revocation: statements signed by the owner's key.

A person keeps one owner key, and every machine works with a key of its own, its *delegate*. The owner signs a
`Delegation` of the machine's key; the machine consents by sending it in an envelope that it signs itself. So nobody can
claim another's work, and the owner's key need not be on any machine that works. A `Revocation` ends it from a time on.

Neither statement names a run: an owner signs once for all runs. The rule that follows from them is in
`p2prl.protocol.ownership`.
"""

from __future__ import annotations

import msgspec

from p2prl.errors import IdentityError, RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import digest
from p2prl.protocol.identity import PUBLIC_KEY_BYTES, Identity, verify_raw
from p2prl.protocol.statement_text import line_of, read_line
from p2prl.protocol.wire_codec import Wire

LABEL_BYTES = 16
"""Tag of a machine's name: long enough that the machines of one owner never share one."""

DAY_MS = 24 * 3600 * 1000

_DELEGATION_DOMAIN = "p2prl/delegation/v1"
_REVOCATION_DOMAIN = "p2prl/revocation/v1"
_LABEL_DOMAIN = "p2prl/machine-label/v1"
_MAX_MS = 1 << 53

DELEGATION_PREFIX = "p2prl-delegation:"
REVOCATION_PREFIX = "p2prl-revocation:"


class Delegation(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The owner's statement that the work of `delegate` from `not_before_ms` until `expires_ms` is its own."""

    owner: bytes
    """Public key."""
    delegate: bytes
    """Public key of the machine."""
    serial: int
    """Larger than that of every earlier statement of this owner about this machine: Unix milliseconds of its signing,
    or one more than the last serial if that is larger. A revocation voids the serials up to its own."""
    not_before_ms: int
    """Work receipted from this time on, Unix milliseconds by the learner's clock; 0 for all earlier work too."""
    expires_ms: int
    """Work receipted before this time."""
    label: bytes
    """`label_of` the owner's name for the machine, or empty. Nobody else can compute it, so it tells nobody a name."""
    signature: bytes
    """The owner's."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` unless the values are in range and the owner signed them."""
        self.check_terms()
        if not verify_raw(self.owner, _delegation_bytes(self), self.signature):
            raise RemoteProtocolError("delegation: not signed by its owner")

    def check_sent_by(self, author: bytes) -> None:
        """`check`, for a delegation in an envelope: its author must be the machine, which so consents."""
        if author != self.delegate:
            raise RemoteProtocolError("delegation: not sent by the machine it is about")
        self.check()

    def check_terms(self) -> None:
        """`check` without the signature."""
        _check_pair("delegation", self.owner, self.delegate, self.serial)
        if not 0 <= self.not_before_ms < self.expires_ms < _MAX_MS:
            raise RemoteProtocolError("delegation: it ends before it begins")
        if not 0 < self.expires_ms - self.serial <= limits.MAX_DELEGATION_LIFE_S * 1000:
            raise RemoteProtocolError("delegation: it ends before it was signed, or too long after")
        if len(self.label) not in (0, LABEL_BYTES):
            raise RemoteProtocolError(f"delegation: a label has {LABEL_BYTES} bytes")

    def covers(self, at_ms: int) -> bool:
        """Whether its period contains a time."""
        return self.not_before_ms <= at_ms < self.expires_ms


class Revocation(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The owner's statement that its delegations of `delegate` up to `serial` are void from `from_ms` on."""

    owner: bytes
    delegate: bytes
    serial: int
    from_ms: int
    """Unix milliseconds by the learner's clock. It may lie before the signing: a theft is noticed late."""
    signature: bytes
    """The owner's."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` unless the values are in range and the owner signed them."""
        self.check_terms()
        if not verify_raw(self.owner, _revocation_bytes(self), self.signature):
            raise RemoteProtocolError("revocation: not signed by its owner")

    def check_sent_by(self, author: bytes) -> None:  # noqa: ARG002 - as for a delegation, but from anybody
        """`check`, for a revocation in an envelope: anybody may pass it on."""
        self.check()

    def check_terms(self) -> None:
        """`check` without the signature."""
        _check_pair("revocation", self.owner, self.delegate, self.serial)
        if not 0 <= self.from_ms < _MAX_MS:
            raise RemoteProtocolError("revocation: impossible time")

    def voids(self, delegation: Delegation, at_ms: int) -> bool:
        """Whether it makes a delegation of the same pair void at a time."""
        return delegation.serial <= self.serial and at_ms >= self.from_ms


Statement = Delegation | Revocation


def sign_delegation(
    owner: Identity, delegate: bytes, *, serial: int, expires_ms: int, not_before_ms: int = 0, name: str = ""
) -> Delegation:
    """The owner's signed delegation of a machine's public key; `name` is the owner's own name for the machine.

    Raises `IdentityError` when no peer would accept it.
    """
    label = label_of(owner, name) if name else b""
    draft = Delegation(owner.public_key, delegate, serial, not_before_ms, expires_ms, label, b"")
    _check_before_signing(draft)
    return msgspec.structs.replace(draft, signature=owner.sign_raw(_delegation_bytes(draft)))


def sign_revocation(owner: Identity, delegate: bytes, *, serial: int, from_ms: int) -> Revocation:
    """The owner's signed revocation. Raises `IdentityError` when no peer would accept it."""
    draft = Revocation(owner.public_key, delegate, serial, from_ms, b"")
    _check_before_signing(draft)
    return msgspec.structs.replace(draft, signature=owner.sign_raw(_revocation_bytes(draft)))


def label_of(owner: Identity, name: str) -> bytes:
    """Tag of a machine's name that only the owner's key can make. A plain digest of a name could be guessed."""
    return digest(_LABEL_DOMAIN, owner.secret_seed, name.encode())[:LABEL_BYTES]


def statement_text(statement: Statement) -> str:
    """A statement as one line of text, to carry from one machine to another."""
    prefix = DELEGATION_PREFIX if isinstance(statement, Delegation) else REVOCATION_PREFIX
    return line_of(prefix, statement)


def parse_statement(text: str) -> Statement:
    """Read `statement_text`. Raises `IdentityError` unless it is a whole statement that its owner signed."""
    text = text.strip()
    if text.startswith(DELEGATION_PREFIX):
        return read_line(text, DELEGATION_PREFIX, Delegation, name="delegation")
    if text.startswith(REVOCATION_PREFIX):
        return read_line(text, REVOCATION_PREFIX, Revocation, name="revocation")
    raise IdentityError(
        "this text is neither a delegation nor a revocation",
        remedy=f"Paste the whole line that begins with {DELEGATION_PREFIX} or {REVOCATION_PREFIX}",
    )


def _check_before_signing(statement: Statement) -> None:
    try:
        statement.check_terms()
    except RemoteProtocolError as error:
        raise IdentityError(str(error), remedy="Check the dates and the key.") from error


def _check_pair(kind: str, owner: bytes, delegate: bytes, serial: int) -> None:
    if len(owner) != PUBLIC_KEY_BYTES or len(delegate) != PUBLIC_KEY_BYTES:
        raise RemoteProtocolError(f"{kind}: owner and delegate must have {PUBLIC_KEY_BYTES} bytes")
    if owner == delegate:
        raise RemoteProtocolError(f"{kind}: a key is its own owner without one")
    if not 0 < serial < _MAX_MS:
        raise RemoteProtocolError(f"{kind}: serial out of range")


def _delegation_bytes(terms: Delegation) -> bytes:
    numbers = (terms.serial, terms.not_before_ms, terms.expires_ms)
    return digest(_DELEGATION_DOMAIN, terms.owner, terms.delegate, *map(_uint64, numbers), terms.label)


def _revocation_bytes(terms: Revocation) -> bytes:
    return digest(_REVOCATION_DOMAIN, terms.owner, terms.delegate, _uint64(terms.serial), _uint64(terms.from_ms))


def _uint64(number: int) -> bytes:
    return number.to_bytes(8, "little")
