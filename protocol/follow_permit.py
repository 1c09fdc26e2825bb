"""Permit of a standby learner: the run's key allows one peer to follow the learner for a while.

Who follows gets the learner's journal, its checkpoints and the optimizer's state, so a permit names the follower's key,
which the connection proves, and ends soon. It is made where the run's key is, and shown with every query.
"""

from __future__ import annotations

import struct

from p2prl.errors import RemoteProtocolError
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.identity import Identity, verify_raw

PERMIT_BYTES = 72
"""Size of a permit: when it ends, and the signature."""

MAX_PERMIT_LIFE_S = 24 * 3600.0
"""A permit that ends later than this from now is not accepted."""

_DOMAIN = "p2prl/follow-permit/v1"
_EXPIRES = struct.Struct("<Q")


def sign_permit(learner: Identity, *, run: Digest, follower: bytes, expires_ms: int) -> bytes:
    """Allow the peer with this public key to follow the run's learner until `expires_ms`."""
    return _EXPIRES.pack(expires_ms) + learner.sign_raw(_signed(run, follower, expires_ms))


def check_permit(permit: bytes, *, learner: bytes, run: Digest, follower: bytes, now: float) -> None:
    """Raise `RemoteProtocolError` unless the run's key, `learner`, allows this peer to follow it now."""
    if len(permit) != PERMIT_BYTES:
        raise RemoteProtocolError(f"follow permit: {len(permit)} bytes instead of {PERMIT_BYTES}")
    (expires_ms,) = _EXPIRES.unpack_from(permit)
    if not now * 1000 <= expires_ms <= (now + MAX_PERMIT_LIFE_S) * 1000:
        raise RemoteProtocolError("follow permit: it has ended, or ends too far ahead")
    if not verify_raw(learner, _signed(run, follower, expires_ms), permit[_EXPIRES.size :]):
        raise RemoteProtocolError("follow permit: not signed by the run's key for this peer")


def _signed(run: Digest, follower: bytes, expires_ms: int) -> bytes:
    return digest(_DOMAIN, run, follower, _EXPIRES.pack(expires_ms))
