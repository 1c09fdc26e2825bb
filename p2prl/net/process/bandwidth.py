"""One machine's uplink as its owner limits it: a pace, a month's bytes, and a file that remembers them.

The node's driver tells it of every chunk that leaves and every one that is acknowledged. It answers with a rate for
the relay, and says when the month's bytes are used up.
"""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path

from p2prl.clock import Clock
from p2prl.net.transports.pacing import Pacer
from p2prl.protocol.identity import PeerId
from p2prl.swarm.relay.upload_budget import GIVEN_SHARE, MonthlyBudget, UplinkMeter

_SAVE_BYTES = 16 * 1024 * 1024
"""The file is written again after this much: what a power cut forgets of a month."""

log = logging.getLogger("p2prl.net")


class Uplink:
    """Caps of one seat. Build it on the event loop."""

    def __init__(self, clock: Clock, *, cap_bytes_s: float, monthly_bytes: int, path: Path) -> None:
        """`cap_bytes_s` 0 measures the uplink and uses 80 % of it; `monthly_bytes` 0 is no limit; `path` is where the
        month's bytes are kept."""
        self._clock = clock
        self._cap_bytes_s = cap_bytes_s
        self._meter = UplinkMeter()
        self._path = path
        self._saved_bytes = 0
        self._budget = _load(path, monthly_bytes)
        self.pacer = Pacer(clock, cap_bytes_s)

    @property
    def rate_bytes_s(self) -> float:
        """What the relay may count on: the cap, or what was measured of it; 0 while unknown."""
        return self._cap_bytes_s or GIVEN_SHARE * self._meter.measured_bytes_s

    @property
    def spent_bytes(self) -> int:
        """Uploaded this month."""
        return self._budget.spent_bytes

    def is_spent(self) -> bool:
        """Whether the month's bytes are used up."""
        return self._budget.is_spent(self._clock.now())

    def sending(self, size_bytes: int) -> None:
        """A chunk leaves now."""
        now = self._clock.now()
        if not self._cap_bytes_s and self.pacer.rate_bytes_s and self._meter.wants_probe(now):
            self.pacer.set_rate(0.0)
        self._meter.sending(now)
        self._budget.spend(size_bytes, now)
        if abs(self._budget.spent_bytes - self._saved_bytes) >= _SAVE_BYTES:
            self.save()

    def sent(self, peer: PeerId, size_bytes: int) -> bool:
        """A chunk is acknowledged, or has failed (0 bytes). Returns whether `rate_bytes_s` has changed."""
        measured = self._meter.sent(peer, size_bytes, self._clock.now())
        if measured and not self._cap_bytes_s:
            self.pacer.set_rate(self.rate_bytes_s)
            return True
        return False

    def save(self) -> None:
        """Write the month's bytes down. A disk that takes no file costs the memory of them, not the work."""
        self._saved_bytes = self._budget.spent_bytes
        new = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_text(json.dumps({"month": self._budget.month, "uploaded_bytes": self._budget.spent_bytes}))
            new.rename(self._path)
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error)


def _load(path: Path, limit_bytes: int) -> MonthlyBudget:
    """The month so far; an empty one where there is no file, or the disk has damaged it."""
    budget = MonthlyBudget(limit_bytes)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_text())
        month, spent = kept["month"], kept["uploaded_bytes"]
        if isinstance(month, str) and isinstance(spent, int) and spent >= 0:
            budget.month, budget.spent_bytes = month, spent
    return budget
