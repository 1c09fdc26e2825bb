"""The policy that a scorer holds, so that none is loaded twice."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.models.scorer_port import Scorer


class LoadedPolicy:
    """Knows which policy is in a scorer."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer = scorer
        self.digest: bytes | None = None
        """Of the policy, None without one."""

    def load(self, digest: bytes, weights: Callable[[], memoryview]) -> None:
        """Load a policy, unless the scorer holds it."""
        if digest != self.digest:
            self.digest = None
            self._scorer.load_weights(weights())
            self.digest = digest

    def forget(self) -> None:
        """Somebody else has used the scorer's model: it holds no policy, or another."""
        self.digest = None
