"""A bounded memory of digests: envelopes already accepted, so that none is forwarded twice, and known groups. Pure."""

from __future__ import annotations


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
