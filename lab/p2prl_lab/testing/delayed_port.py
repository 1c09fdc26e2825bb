"""A network port that delays rollout groups, for staleness experiments over real sockets.

Delay is counted in traffic, not in seconds: a group is held until a number of others have arrived after it. The
learner's staleness then does not depend on the machine's speed, so busy and idle machines measure the same.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.passing_port import PassingPort
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, open_envelope
from p2prl.protocol.signed_group import GROUP_KINDS


class DelayedPort(PassingPort):
    """A network port that delays rollout groups; everything else passes at once.

    Groups held when it is closed are lost; their authors offer them again.
    """

    def __init__(self, port: NetworkPort, draw_groups: Callable[[], int]) -> None:
        """`draw_groups` gives each group's delay: how many others must arrive after it, 0 or more."""
        super().__init__(port)
        self._draw_groups = draw_groups
        self._arrived = 0
        self._held: list[tuple[int, int, Opened]] = []
        self._waiting: set[Digest] = set()
        self._released: set[Digest] = set()

    @property
    def held(self) -> int:
        """Number of groups being held."""
        return len(self._held)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """Messages that arrived, without the groups being held, and the groups that are due."""
        passed: list[control.FromNetwork] = []
        for message in super().poll(timeout_s):
            if not isinstance(message, control.EnvelopeArrived) or not self._hold(message.envelope):
                passed.append(message)
            passed += self._due()
        return passed

    def _hold(self, envelope: bytes) -> bool:
        """Hold a group that is not due yet; returns whether it was held. A group offered again is not held again."""
        opened = open_envelope(envelope, now=None)
        if opened.kind not in GROUP_KINDS or opened.digest in self._released:
            return False
        if opened.digest not in self._waiting:
            self._arrived += 1
            self._waiting.add(opened.digest)
            heapq.heappush(self._held, (self._arrived + self._draw_groups(), self._arrived, opened))
        return True

    def _due(self) -> Iterator[control.EnvelopeArrived]:
        while self._held and self._held[0][0] <= self._arrived:
            _, _, opened = heapq.heappop(self._held)
            self._waiting.discard(opened.digest)
            self._released.add(opened.digest)
            yield control.EnvelopeArrived(opened.raw)
