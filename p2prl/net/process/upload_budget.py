"""Upload budget of one machine: a rate cap, a monthly limit, and the file that stores the month's bytes.

The node's driver reports every frame sent and every chunk acknowledged. The budget provides the relay's upload rate and
reports when the monthly limit is reached.
"""

from __future__ import annotations

import contextlib
import json
import logging
from pathlib import Path

from p2prl.clock import Clock
from p2prl.disk_full import replace_file
from p2prl.net.pacing import Pacer
from p2prl.protocol.identity import PeerId
from p2prl.swarm.relay.uplink_meter import GIVEN_SHARE, MonthlyBudget, UplinkMeter, month_of

_SAVE_BYTES = 16 * 1024 * 1024
"""The file is written again after this many bytes: the most that a power cut loses."""

log = logging.getLogger("p2prl.net")


class UploadBudget:
    """Upload caps of one worker folder. Build it on the event loop."""

    def __init__(self, clock: Clock, *, cap_bytes_s: float, monthly_bytes: int, path: Path) -> None:
        """`cap_bytes_s` 0 measures the uplink and uses 80 % of it; `monthly_bytes` 0 means no limit; `path` is the file
        that stores the month's bytes."""
        self._clock = clock
        self._cap_bytes_s = cap_bytes_s
        self._meter = UplinkMeter()
        self._path = path
        self._saved_bytes = 0
        self._budget = _load(path, monthly_bytes, month_of(clock.now()))
        self.pacer = Pacer(clock, cap_bytes_s)

    def set_caps(self, *, cap_bytes_s: float, monthly_bytes: int) -> None:
        """Replace the caps; what was spent this month stays. A removed rate cap measures again."""
        self._cap_bytes_s = cap_bytes_s
        self._budget.limit_bytes = monthly_bytes
        self.pacer.set_rate(self.rate_bytes_s)

    @property
    def rate_bytes_s(self) -> float:
        """Upload rate available to the relay: the cap, or the usable share of the measured uplink; 0 while unknown."""
        return self._cap_bytes_s or GIVEN_SHARE * self._meter.measured_bytes_s

    @property
    def spent_bytes(self) -> int:
        """Bytes uploaded this month."""
        return self._budget.spent_bytes

    def is_spent(self) -> bool:
        """Whether the monthly limit is reached."""
        return self._budget.is_spent(self._clock.now())

    def chunk_leaves(self, size_bytes: int) -> None:
        """A chunk is handed to the transport now."""
        now = self._clock.now()
        if not self._cap_bytes_s and self.pacer.rate_bytes_s and self._meter.wants_probe(now):
            self.pacer.set_rate(0.0)
        self._meter.sending(now)
        self.count(size_bytes)

    def count(self, size_bytes: int) -> None:
        """Count bytes of any frame for the month."""
        self._budget.spend(size_bytes, self._clock.now())
        if abs(self._budget.spent_bytes - self._saved_bytes) >= _SAVE_BYTES:
            self.save()

    def chunk_done(self, peer: PeerId, size_bytes: int) -> bool:
        """A chunk was acknowledged, or has failed (0 bytes). Returns whether `rate_bytes_s` has changed."""
        measured = self._meter.sent(peer, size_bytes, self._clock.now())
        if measured and not self._cap_bytes_s:
            self.pacer.set_rate(self.rate_bytes_s)
            return True
        return False

    def save(self) -> None:
        """Write the month's bytes to disk. If that fails, a restart loses them, but work continues."""
        self._saved_bytes = self._budget.spent_bytes
        document = {"month": self._budget.month, "uploaded_bytes": self._budget.spent_bytes}
        try:
            replace_file(self._path, json.dumps(document).encode())
        except OSError as error:
            log.warning("cannot write %s: %s", self._path, error)


def _load(path: Path, limit_bytes: int, month_now: str) -> MonthlyBudget:
    """The month so far; an empty one when there is no file or it is damaged. A month to come, which a wrong clock has
    left there, is this one: its bytes count, and the next month begins in time."""
    budget = MonthlyBudget(limit_bytes)
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        kept = json.loads(path.read_text())
        month, spent = kept["month"], kept["uploaded_bytes"]
        if isinstance(month, str) and isinstance(spent, int) and spent >= 0:
            budget.month, budget.spent_bytes = min(month, month_now), spent
    return budget
