"""Audit sampling: a secret pseudorandom choice of the groups a validator replays, so no volunteer can predict it.

The choice is a keyed hash of the group's digest: unpredictable without the validator's secret, stateless, and the same
after a restart.
"""

from __future__ import annotations

from p2prl.protocol.digests import Digest, digest


def is_selected(group: Digest, secret: bytes, rate: float) -> bool:
    """Whether to replay a group, given the validator's secret and the share (0..1) it audits."""
    draw = int.from_bytes(digest("p2prl/audit-selection/v1", secret, group)[:8], "little")
    return draw < rate * 2**64
