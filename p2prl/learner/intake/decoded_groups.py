"""Cache of decoded groups waiting for their check, so that an envelope is verified and decoded only once."""

from __future__ import annotations

from collections import OrderedDict

from p2prl.learner.journal.groups import StoredGroup
from p2prl.protocol.digests import Digest
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.signed_group import SignedGroup, read_group

_KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of the groups kept: some thousand of usual size, five of the largest. Without a bound, many keys that each
deliver the limit of one peer would fill the learner's memory."""


class DecodedGroups:
    """Groups by envelope digest. When there are too many, the oldest are dropped and decoded again later."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Digest, tuple[RolloutGroup, int]] = OrderedDict()
        self._bytes = 0

    def keep(self, group: SignedGroup) -> None:
        """Keep a group until it is taken."""
        if group.digest in self._kept:
            return
        self._kept[group.digest] = group.group, group.size_bytes
        self._bytes += group.size_bytes
        while self._bytes > _KEPT_BYTES:
            _, (_, dropped_bytes) = self._kept.popitem(last=False)
            self._bytes -= dropped_bytes

    def take(self, stored: StoredGroup) -> RolloutGroup:
        """Remove and return a group; decode it from its row when it is not kept, as after a restart."""
        if stored.digest not in self._kept:
            return read_group(stored.raw, stored.body).group
        group, size_bytes = self._kept.pop(stored.digest)
        self._bytes -= size_bytes
        return group
