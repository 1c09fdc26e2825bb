"""Gate before the network: what a learner signs leaves once its standby learner holds it too. Pure.

A standby that was promoted must never sign a second version, receipt or ledger entry in the place of one that somebody
has seen. So while a standby keeps step, every signed message waits until the copy with its row of the journal is on the
standby's disk. A standby that is silent or slow is left behind: the learner says so, writes it down, and goes on alone.

A standby that comes holds a copy from before some of what has left. So messages are held from its first copy on, and it
keeps step once it holds a copy that was taken since.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar

Message = TypeVar("Message")

SILENT_S = 60.0
"""A standby that has asked for nothing for this long is left behind."""

MOST_HELD_S = 300.0
"""A message is held for this long at most, while the standby asks: with a checkpoint that takes longer to send, the
learner goes on alone until the standby has it."""

START_WAIT_S = 150.0
"""A learner whose standby kept step when it ended publishes nothing for this long after its start, unless the standby
asks. A learner that was promoted meanwhile signs a head every 120 s, which then arrives."""

PROMOTED_WAIT_S = 20.0
"""The same at the first start after a promotion: peers that link with it tell of newer versions at once."""

_MOST_HELD = 65_536
"""Messages held; with more the standby is left behind."""


class PublicationGate(Generic[Message]):
    """Holds messages back for a standby that keeps step."""

    def __init__(self, now: float, *, wait_s: float = 0.0) -> None:
        """`wait_s` is how long messages are held from the start on, unless a standby asks; 0 for not at all."""
        self._deadline = now + wait_s if wait_s else -math.inf
        self._held: deque[tuple[int, float, Message]] = deque()
        self._confirmed = 0
        self._complete_from = 0
        """First copy that has everything that left before messages were held."""
        self.holds = wait_s > 0.0
        """Whether messages are held back."""

    @property
    def held(self) -> int:
        """Messages that wait."""
        return len(self._held)

    @property
    def confirmed(self) -> int:
        """Newest copy that the standby holds; 0 for none since the start."""
        return self._confirmed

    @property
    def keeps_step(self) -> bool:
        """Whether nobody has seen what the standby lacks."""
        return self.holds and self._confirmed >= self._complete_from

    def passes(self, message: Message, *, copy: int, now: float) -> bool:
        """Whether a message may be sent now; else it is held until the standby has `copy`, the first that contains what
        the message says."""
        if not self.holds or (copy <= self._confirmed and not self._held):
            return True
        self._held.append((copy, now, message))
        return False

    def asked(self, now: float) -> None:
        """The standby has asked for something."""
        self._deadline = max(self._deadline, now + SILENT_S)

    def confirm(self, copy: int, now: float, *, next_copy: int) -> list[Message]:
        """The standby holds a copy: messages are held from now on. Returns what may be sent. `next_copy` is the first
        that is taken after now."""
        if not self.holds:
            self.holds, self._complete_from = True, next_copy
        self._confirmed = max(self._confirmed, copy)
        self.asked(now)
        released = []
        while self._held and self._held[0][0] <= self._confirmed:
            released.append(self._held.popleft()[2])
        return released

    def is_silent(self, now: float) -> bool:
        """Whether the standby has asked for nothing for too long."""
        return now > self._deadline

    def is_left_behind(self, now: float) -> bool:
        """Whether messages must not wait any longer. Write that down, then `open`."""
        waits_long = bool(self._held) and now > self._held[0][1] + MOST_HELD_S
        return self.holds and (self.is_silent(now) or waits_long or len(self._held) > _MOST_HELD)

    def open(self) -> list[Message]:
        """Go on alone. Returns what may be sent."""
        self.holds = False
        released = [message for _, _, message in self._held]
        self._held.clear()
        return released
