"""Deduplication: a bounded memory of the envelopes already accepted, so that none is forwarded twice."""

from __future__ import annotations

from collections import OrderedDict

from p2prl.protocol.digests import Digest


class SeenEnvelopes:
    """Digests of accepted envelopes; past `capacity` the one accepted longest ago is forgotten."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._digests: OrderedDict[Digest, None] = OrderedDict()

    def __contains__(self, name: Digest) -> bool:
        return name in self._digests

    def add(self, name: Digest) -> None:
        """Remember an envelope as the newest."""
        self._digests[name] = None
        self._digests.move_to_end(name)
        if len(self._digests) > self._capacity:
            self._digests.popitem(last=False)

    def forget(self, name: Digest) -> None:
        """Forget an envelope: it may be asked for and accepted again."""
        self._digests.pop(name, None)
