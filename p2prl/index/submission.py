"""A learner's message to an index: a signed listing, with the run's manifest when the index asks for it."""

from __future__ import annotations

from p2prl.protocol.listing import MAX_LISTING_BYTES, MAX_MANIFEST_BYTES
from p2prl.protocol.wire_codec import Wire, decode, encode

OCTETS = "application/octet-stream"

MAX_SUBMISSION_BYTES = MAX_LISTING_BYTES + MAX_MANIFEST_BYTES + 32
"""Both parts, and the lengths in front of them."""


class Submission(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The body of a request."""

    listing: bytes
    manifest: bytes
    """The manifest's envelope; empty once the index knows the run."""


def submission(listing: bytes, manifest: bytes) -> bytes:
    """The bytes of a message."""
    return encode(Submission(listing, manifest))


def parse_submission(body: bytes) -> Submission:
    """The parts of a message. Raises `RemoteProtocolError` for other bytes, and for more of them than a message has."""
    return decode(body, Submission, limit_bytes=MAX_SUBMISSION_BYTES)
