"""Verdicts on downloads that wait for chunks. Pure."""

from __future__ import annotations

import enum
import math

from p2prl.swarm.policies.version_download import VersionDownload
from p2prl.swarm.relay.chunk_relay import Relay

_STALLED_S = 20.0
"""A download without a chunk for this long is given up for another version or route: the peers that had it have moved
on, or never had it."""

_OUT_OF_REACH_S = 5.0
"""So long when some chunk is at no linked peer, by what they announce: they are asked again within this time."""

MOST_BACK = 16
"""Versions to step back, each after seconds: peers that are slower than the learner hold a version and skip some."""


class Step(enum.Enum):
    """What to do with a download."""

    WAIT = enum.auto()
    GO_ON = enum.auto()
    """Download the newest version instead."""
    STEP_BACK = enum.auto()
    """Download the version before instead."""
    FULL_WEIGHTS = enum.auto()
    """Download the full weights instead of the patches."""
    AVOID = enum.auto()
    """Choose another route, and never again this one."""


class Stalls:
    """Judges the downloads of one node. Time without any linked peer does not count as waiting."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._alone_at = -math.inf

    def look(self, now: float) -> None:
        """Note whether there is anybody to wait for."""
        if not self._relay.has_neighbors:
            self._alone_at = now

    def is_stalled(self, download: VersionDownload, now: float) -> bool:
        """Whether no chunk has arrived for long, whatever others announce."""
        return self._waited_s(download, now) > _STALLED_S

    def step_of_newest(self, download: VersionDownload, now: float, *, newest: int, held: int) -> Step:
        """What to do with the download of the newest version, or of one that stands in for it.

        `newest` is the newest version known, `held` the newest one on disk, or −1.
        """
        is_stalled, version = self.is_stalled(download, now), download.target.manifest.version
        if newest != version and not download.stands_in:
            return Step.GO_ON if is_stalled else Step.WAIT
        if not (is_stalled or self._is_out_of_reach(download, now)):
            return Step.WAIT
        lags = not download.stands_in and held + 1 < version
        if not download.route or (lags and held >= 0):
            return Step.STEP_BACK
        if held < 0 and not download.from_local_base:
            return Step.FULL_WEIGHTS  # a patch from nothing saves little, and fewer have it
        return Step.AVOID if is_stalled else Step.WAIT

    def _is_out_of_reach(self, download: VersionDownload, now: float) -> bool:
        if all(self._relay.is_within_reach(ref.root) for ref in download.blobs()):
            return False
        return self._waited_s(download, now) > _OUT_OF_REACH_S

    def _waited_s(self, download: VersionDownload, now: float) -> float:
        progressed = (self._relay.progressed_at(ref.root) for ref in download.blobs())
        return now - max(download.since, self._alone_at, *progressed)
