"""Cache of decoded groups waiting for their check, so that an envelope is verified and decoded only once."""

from __future__ import annotations

from collections import OrderedDict

from p2prl.learner.journal.groups import StoredGroup
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.rollout_group import RolloutGroup

_KEPT_BYTES = 64 * 1024 * 1024
"""Envelope bytes of the groups kept: some thousand groups of usual size. Without a bound, many keys that each deliver
the limit of one peer would fill the learner's memory."""


class DecodedGroups:
    """Groups by envelope digest. When there are too many, the oldest are dropped and decoded again later."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Digest, tuple[RolloutGroup, int]] = OrderedDict()
        self._bytes = 0

    def keep(self, digest: Digest, group: RolloutGroup, *, envelope_bytes: int) -> None:
        """Keep a group until it is taken."""
        if digest in self._kept:
            return
        self._kept[digest] = group, envelope_bytes
        self._bytes += envelope_bytes
        while self._bytes > _KEPT_BYTES:
            _, (_, dropped_bytes) = self._kept.popitem(last=False)
            self._bytes -= dropped_bytes

    def take(self, stored: StoredGroup) -> RolloutGroup:
        """Remove and return a group; decode it from its row when it is not kept, as after a restart."""
        if stored.digest not in self._kept:
            return body_of(open_envelope(stored.raw, now=None), RolloutGroup)
        group, envelope_bytes = self._kept.pop(stored.digest)
        self._bytes -= envelope_bytes
        return group
