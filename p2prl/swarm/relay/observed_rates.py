"""Rates that a node finds by itself: of its own line while it sends and receives, and of its neighbors' progress.

Nobody's word is needed for either, so nobody gains or loses by what it claims.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

_SAMPLE_S = 0.3
_SAMPLE_CHUNKS = 3
"""A sample of the uplink spans at least this long and this many chunks: acknowledgements arrive in bursts."""

_KEEP_S = 30.0
"""How long the best sample is believed, if others come: a line may become slower."""

_BUSY_CHUNKS = 2
"""Chunks under way all through a sample that measured the line, and not how much was wanted: with one alone, the line
rests for each round trip."""

_RECEIVE_S = 2.0
_RECEIVE_SAMPLES = 8
"""Shortest sample of the downlink, and how many are kept."""

_HORIZON_S = 8.0
"""Progress is averaged over this long: a chunk of 512 KiB takes 5 s on an uplink of 1 Mbit/s."""

_FIRST_S = 1.0
"""No progress is reported before it could be seen this long."""


@dataclass(slots=True)
class SendRate:
    """The uplink's rate, from the times at which chunks were handed over and acknowledged.

    A sample in which the sender had too little to send can raise the estimate, but not lower it: an idle sender is not
    a slow one. (The filter of BBR, Cardwell et al., 2016.)
    """

    bytes_s: float = 0.0
    """0 before the first acknowledgement."""
    _under_way: int = 0
    _from: float = 0.0
    _bytes: int = 0
    _chunks: int = 0
    _fewest: int = 0
    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def began(self, now: float) -> None:
        """A chunk is handed over."""
        if self._under_way == 0:
            self._begin(now)
        self._under_way += 1

    def ended(self, size_bytes: int, now: float) -> None:
        """A chunk was acknowledged, or failed (0 bytes)."""
        self._bytes += size_bytes
        self._chunks += size_bytes > 0
        span_s = now - self._from
        is_whole = self._chunks >= _SAMPLE_CHUNKS and span_s >= _SAMPLE_S
        if self._bytes and span_s > 0 and (is_whole or not self.bytes_s):
            self._take(self._bytes / span_s, now, fell=self._fewest >= _BUSY_CHUNKS)
            self._begin(now)
        self._under_way = max(0, self._under_way - 1)
        self._fewest = min(self._fewest, self._under_way) if self._chunks else self._under_way

    def _begin(self, now: float) -> None:
        self._from, self._bytes, self._chunks, self._fewest = now, 0, 0, self._under_way

    def _take(self, sample: float, now: float, *, fell: bool) -> None:
        if sample >= self.bytes_s:
            self._samples.clear()
        elif not fell:
            return
        self._samples.append((now, sample))
        while len(self._samples) > 1 and (self._samples[0][0] < now - _KEEP_S or self._samples[0][1] <= sample):
            self._samples.popleft()
        self.bytes_s = max(rate for _, rate in self._samples)


@dataclass(slots=True)
class DownlinkRate:
    """The best rate of the last samples of what arrives: a line with too little to receive is not slow."""

    bytes_s: float = 0.0
    """0 before the first sample."""
    _from: float = -math.inf
    _bytes: int = 0
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=_RECEIVE_SAMPLES))

    def take(self, size_bytes: int, now: float) -> None:
        """Bytes have arrived."""
        span_s = now - self._from
        if span_s >= _RECEIVE_S:
            if not math.isinf(span_s):
                self._rates.append(self._bytes / span_s)
            self._from, self._bytes = now, 0
            self.bytes_s = max(self._rates, default=0.0)
        self._bytes += size_bytes


@dataclass(slots=True)
class Gains:
    """Chunks that neighbors gained, per second, over the last few seconds and since the beginning."""

    total: int = 0
    _began_at: float = math.inf
    _seconds: deque[tuple[int, int]] = field(default_factory=deque)
    """(second, chunks gained in it)."""

    def begin(self, now: float) -> None:
        """Neighbors are watched from now on."""
        self._began_at = min(self._began_at, now)

    def seen_s(self, now: float) -> float:
        """For how long neighbors have been watched; 0 before."""
        return max(0.0, now - self._began_at)

    def add(self, chunks: int, now: float) -> None:
        """Neighbors announced this many chunks that they had not before."""
        self.begin(now)
        self.total += chunks
        second = math.floor(now)
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1] = (second, self._seconds[-1][1] + chunks)
        else:
            self._seconds.append((second, chunks))
        while self._seconds[0][0] < second - _HORIZON_S:
            self._seconds.popleft()

    def rate(self, now: float) -> float:
        """Chunks a second, lately; 0 while too little was seen."""
        span_s = min(_HORIZON_S, self.seen_s(now))
        if span_s < _FIRST_S:
            return 0.0
        return sum(chunks for second, chunks in self._seconds if second >= math.floor(now - span_s)) / span_s

    def mean_rate(self, now: float) -> float:
        """Chunks a second since the beginning."""
        span_s = self.seen_s(now)
        return 0.0 if span_s < _FIRST_S else self.total / span_s
