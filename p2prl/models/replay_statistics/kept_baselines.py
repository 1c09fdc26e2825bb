"""Noise baselines that outlive the process: a small file, replaced whole now and then.

Losing it costs nothing but time: until enough groups are seen again, every pair has the widest band of its dtype.
"""

from __future__ import annotations

from pathlib import Path

from p2prl.disk_full import write_error
from p2prl.errors import RemoteProtocolError
from p2prl.models.replay_statistics.baselines import MAX_FILE_BYTES, NoiseBaselines, NoiseEvidence, Pair

_SAVE_EVERY = 512
"""Groups between two writes: a minute's work or more, and a fraction of a second's to measure again."""


class KeptBaselines:
    """Baselines of one learner or validator, in a file if it has one."""

    def __init__(self, path: Path | None = None) -> None:
        """A file that is damaged is begun anew."""
        self._path = path
        self._unsaved = 0
        self._noise = NoiseBaselines()
        if path is not None and path.exists() and path.stat().st_size <= MAX_FILE_BYTES:
            try:
                self._noise = NoiseBaselines.decode(path.read_bytes())
            except RemoteProtocolError:
                path.unlink(missing_ok=True)

    @property
    def records(self) -> int:
        """Peers recorded, over all pairs."""
        return len(self._noise)

    def measured(self, pair: Pair) -> float | None:
        """See `NoiseBaselines.measured`."""
        return self._noise.measured(pair)

    def record(self, pair: Pair, peer: bytes, evidence: NoiseEvidence, reason: str, *, now: float) -> None:
        """See `NoiseBaselines.record`. Writes the file when it is time."""
        self._noise.record(pair, peer, evidence, reason, now=now)
        self._unsaved += 1
        if self._unsaved >= _SAVE_EVERY:
            self.save()

    def save(self) -> None:
        """Write the file, if there is news."""
        if self._path is None or not self._unsaved:
            return
        new = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            new.write_bytes(self._noise.encode())
            new.replace(self._path)
        except OSError as error:
            raise write_error(error, self._path) from error
        self._unsaved = 0
