"""Groups a validator has picked and still has to replay, by the policy they declare. Pure and bounded."""

from __future__ import annotations

from collections import OrderedDict

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened


class ReplayQueue:
    """What is waiting, and for which weights."""

    def __init__(self, *, most: int = 1024) -> None:
        """`most` groups are kept; past it the oldest are let go: a validator samples and never owes a verdict."""
        self._most = most
        self._waiting: OrderedDict[Digest, tuple[Digest, Opened]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, opened: Opened, policy: Digest) -> None:
        """Put a group on the docket."""
        self._waiting[opened.digest] = (policy, opened)
        if len(self._waiting) > self._most:
            self._waiting.popitem(last=False)

    def policies(self) -> list[Digest]:
        """Policies needed, oldest group first, each once."""
        return list(dict.fromkeys(policy for policy, _ in self._waiting.values()))

    def take(self, policy: Digest, limit: int) -> list[Opened]:
        """Remove and return up to `limit` groups that declare a policy."""
        chosen = [name for name, (wanted, _) in self._waiting.items() if wanted == policy][:limit]
        return [self._waiting.pop(name)[1] for name in chosen]

    def drop(self, policy: Digest) -> int:
        """Let go of the groups of a policy nobody has any more; returns how many."""
        return len(self.take(policy, len(self._waiting)))
