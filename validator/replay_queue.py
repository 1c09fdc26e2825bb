"""The groups a validator replays: a secret pseudorandom choice of them, and their queue by declared policy. Pure.

No volunteer can predict the choice. The queue is bounded in bytes.
"""

from __future__ import annotations

from collections import OrderedDict

from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.signed_group import SignedGroup

AUDITED_SHARE = 0.25
"""Share of groups that a validator replays unless its owner says otherwise."""


def is_selected(group: Digest, secret: bytes, rate: float) -> bool:
    """Whether to replay a group, given the validator's secret and the share (0..1) it audits."""
    draw = int.from_bytes(digest("p2prl/audit-selection/v1", secret, group)[:8], "little")
    return draw < rate * 2**64


_TAKEN_BYTES = 32 * 1024 * 1024
"""Bytes of groups taken at once, and one group more: a replay holds their tokens in memory several times over."""


class ReplayQueue:
    """Selected groups, oldest first."""

    def __init__(self, *, max_groups: int = 1024, max_bytes: int = 128 * 1024 * 1024) -> None:
        """Past `max_groups` or `max_bytes` the oldest are dropped: a validator only samples, so no verdict is
        mandatory."""
        self._max_groups = max_groups
        self._max_bytes = max_bytes
        self._bytes = 0
        self._waiting: OrderedDict[Digest, tuple[Digest, SignedGroup]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, group: SignedGroup) -> None:
        """Queue a group under the policy that it declares."""
        if group.digest in self._waiting:
            return
        self._waiting[group.digest] = (Digest(group.group.policy), group)
        self._bytes += group.size_bytes
        while len(self._waiting) > self._max_groups or self._bytes > self._max_bytes:
            self._remove(next(iter(self._waiting)))

    def policies(self) -> list[Digest]:
        """Policies needed, oldest group first, each once."""
        return list(dict.fromkeys(policy for policy, _ in self._waiting.values()))

    def take(self, policy: Digest, limit: int) -> list[SignedGroup]:
        """Remove and return up to `limit` groups that declare a policy, fewer if they are large."""
        declared = [name for name, (other, _) in self._waiting.items() if other == policy][:limit]
        chosen: list[SignedGroup] = []
        for name in declared:
            chosen.append(self._remove(name))
            if sum(group.size_bytes for group in chosen) >= _TAKEN_BYTES:
                break
        return chosen

    def drop(self, policy: Digest) -> None:
        """Remove the groups of a policy whose weights are unavailable."""
        for name in [name for name, (other, _) in self._waiting.items() if other == policy]:
            self._remove(name)

    def _remove(self, name: Digest) -> SignedGroup:
        group = self._waiting.pop(name)[1]
        self._bytes -= group.size_bytes
        return group
