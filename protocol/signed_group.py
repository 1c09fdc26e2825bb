"""Signed rollout groups in both forms: in one envelope, or as a header and the body that it names.

`seal_group` chooses the form by size, `read_group` reads either. Everybody who stores, checks or trains on groups goes
through these two, so no other code tells the forms apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, body_of, open_envelope, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.protocol.manifests import blob_of
from p2prl.protocol.rollout_group import GroupHeader, RolloutGroup
from p2prl.protocol.wire_codec import decode, encode

GROUP_KINDS = frozenset({Kind.ROLLOUT_GROUP, Kind.GROUP_HEADER})
"""Kinds of envelope that announce a group. The envelope's digest is the group's name in receipts and verdicts."""


@dataclass(frozen=True, slots=True)
class SignedGroup:
    """A group with its verified envelope."""

    envelope: Opened
    """Of a rollout group, or of a group header."""
    group: RolloutGroup
    size_bytes: int
    """Bytes it takes on disk: the envelope, and the body of a header."""

    @property
    def digest(self) -> Digest:
        """The group's name."""
        return self.envelope.digest

    @property
    def author(self) -> bytes:
        """Public key of the volunteer."""
        return self.envelope.author


def seal_group(identity: Identity, group: RolloutGroup, *, run: bytes, now: float) -> tuple[bytes, bytes]:
    """Sign a group and return its envelope and its body; the body is empty when the envelope holds the group."""
    raw = seal(identity, group, run=run, now=now)
    if len(raw) <= limits.MAX_ENVELOPE_BYTES:
        return raw, b""
    body = encode(group)
    header = GroupHeader(group.version, group.policy, group.slot, blob_of(body, limits.GROUP_PART_BYTES))
    return seal(identity, header, run=run, now=now), body


def assemble_group(opened: Opened, body: bytes) -> SignedGroup:
    """The group of a verified envelope and its body, checked. Raises `RemoteProtocolError` unless the two agree."""
    size_bytes = len(opened.raw) + len(body)
    if not isinstance(opened.body, GroupHeader):
        group = body_of(opened, RolloutGroup)
        group.check()
        return SignedGroup(opened, group, size_bytes)
    header = opened.body
    header.check()
    made = blob_of(body, limits.GROUP_PART_BYTES)
    if (made.size_bytes, made.tree_hash) != (header.body.size_bytes, header.body.tree_hash):
        raise RemoteProtocolError("group: not the body that its header names")
    group = decode(body, RolloutGroup, limit_bytes=limits.MAX_GROUP_BYTES)
    group.check()
    if (group.version, group.policy, group.slot) != (header.version, header.policy, header.slot):
        raise RemoteProtocolError("group: not of the slot that its header states")
    return SignedGroup(opened, group, size_bytes)


def read_group(raw: bytes, body: bytes = b"") -> SignedGroup:
    """Read a group back from our own disk."""
    return assemble_group(open_envelope(raw, now=None), body)
