"""Bounded memories of digests: known groups, and envelopes accepted before, so that none is forwarded or counted twice.

Pure.
"""

from __future__ import annotations

import heapq


class RecentDigests:
    """Digests in two generations: at most `capacity`, and always the `capacity // 2` that were added last.

    Two sets take at most 64 bytes a digest where an ordered dictionary takes 105, and in a long run this is the largest
    table of a network process.
    """

    def __init__(self, capacity: int) -> None:
        self._half = capacity // 2
        self._newest: set[bytes] = set()
        self._older: set[bytes] = set()

    def __contains__(self, name: bytes) -> bool:
        return name in self._newest or name in self._older

    def __len__(self) -> int:
        return len(self._newest) + len(self._older)

    def add(self, name: bytes) -> None:
        """Remember a digest as the newest."""
        self._older.discard(name)
        self._newest.add(name)
        if len(self._newest) >= self._half:
            self._newest, self._older = set(), self._newest

    def forget(self, name: bytes) -> None:
        """Forget a digest: its envelope may be asked for and accepted again."""
        self._newest.discard(name)
        self._older.discard(name)


class CountedOnce:
    """Envelopes of one author that are each counted once, also when others repeat them after much else has passed.

    `RecentDigests` forgets, and anybody who has an envelope may send it again. This remembers the newest by the time of
    their signing, and takes all earlier ones for counted.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._newest: list[tuple[int, bytes]] = []
        """A heap of (when it was signed, digest)."""
        self._names: set[bytes] = set()
        self._counted_to_ms = -1

    def is_first(self, name: bytes, sent_ms: int) -> bool:
        """Whether this envelope, signed at `sent_ms`, is to be counted; it is counted then."""
        if sent_ms <= self._counted_to_ms or name in self._names:
            return False
        self._names.add(name)
        heapq.heappush(self._newest, (sent_ms, name))
        if len(self._newest) > self._capacity:
            self._counted_to_ms, oldest = heapq.heappop(self._newest)
            self._names.discard(oldest)
        return True
