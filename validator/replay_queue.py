"""Queue of groups that a validator has selected for replay, by the policy they declare. Pure and bounded."""

from __future__ import annotations

from collections import OrderedDict

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened


class ReplayQueue:
    """Selected groups, oldest first."""

    def __init__(self, *, max_groups: int = 1024) -> None:
        """Past `max_groups` the oldest are dropped: a validator only samples, so no verdict is mandatory."""
        self._max_groups = max_groups
        self._waiting: OrderedDict[Digest, tuple[Digest, Opened]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, opened: Opened, policy: Digest) -> None:
        """Queue a group that declares a policy."""
        self._waiting[opened.digest] = (policy, opened)
        if len(self._waiting) > self._max_groups:
            self._waiting.popitem(last=False)

    def policies(self) -> list[Digest]:
        """Policies needed, oldest group first, each once."""
        return list(dict.fromkeys(policy for policy, _ in self._waiting.values()))

    def take(self, policy: Digest, limit: int) -> list[Opened]:
        """Remove and return up to `limit` groups that declare a policy."""
        chosen = [name for name, (declared, _) in self._waiting.items() if declared == policy][:limit]
        return [self._waiting.pop(name)[1] for name in chosen]

    def drop(self, policy: Digest) -> None:
        """Remove the groups of a policy whose weights are unavailable."""
        self.take(policy, len(self._waiting))
