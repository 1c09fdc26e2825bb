"""Progress reports of a volunteer: a snapshot of its state, groups and traffic, a few times per second."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from p2prl.client.run_watch import RunView, RunWatch
from p2prl.client.spool import Spool
from p2prl.net.process import control

SEARCHING = "looking for the run's peers again"
"""State of a volunteer whose rest has ended, until it has a link: the first takes some twenty seconds."""

_SEARCH_S = 60.0
"""After a rest, this long without a link is no fault."""

_REPORT_S = 0.2
"""Progress is reported this often at most: counting the spool costs more than a small model's batch."""

_RATE_S = 1.0
"""Decoding time that tokens per second are counted over."""

_REWARD_WEIGHT = 0.1
"""Weight of the newest group in the moving average of rewards."""

_REMEMBERED_REWARDS = 40
"""Groups of earlier starts that initialize the average: older ones would weigh less than 2 %."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Snapshot of a volunteer for display and its status file. Each figure is a field, because the screen,
    the status file and `--json` show all of them."""

    state: str
    version: int
    """Version in the engine; −1 before the first."""
    announced_version: int
    """Newest version announced by the learner; −1 before the first."""
    peers: Mapping[str, int]
    """Links by the peers' role names."""
    groups: Mapping[str, int]
    """Groups by `SpoolState`."""
    reasons: Mapping[str, int]
    """Groups that earned nothing, by reason."""
    verified_tokens: int
    reward_recent: float | None
    """Moving average of the groups' mean rewards; None before the first, in a run whose tasks are all data,
    and in one with a reward model."""
    tokens_per_s: float
    """Over the last second of decoding."""
    fetching: tuple[int, int, int]
    """(version, chunks held, chunks in all) of the newest download; version −1 when idle."""
    weight_bytes_from_learner: int
    weight_bytes_from_peers: int
    weight_bytes_sent: int
    network_resident_bytes: int
    network_daemon_bytes: int
    weight_bytes_over_circuits: int = 0
    """Of those received: what a third peer sent on."""
    patch_bytes: int = 0
    """Bytes of the patches that versions were decoded from."""
    whole_bytes: int = 0
    """Bytes of versions downloaded as full weights."""
    spared_bytes: int = 0
    """Bytes saved by the local base model."""
    brought_bytes: int = 0
    """Size of all downloaded versions as full weights."""
    step: int = -1
    """Learner step of the newest announced version; −1 before the first."""
    files: tuple[int, int] = (0, 0)
    """(bytes held, bytes in all) of the run's files and data."""
    reach: str = ""
    """How others reach it; empty while unknown."""
    resting: bool = False
    """Whether the owner's limits or commands let it do nothing now."""
    run: RunView = field(default_factory=RunView)
    """The run as seen from here."""
    hears_learner: bool = False
    """Whether receipts of a learner come that is not linked: peers pass them on, and groups back."""


NO_STATUS = control.Status((), 0, 0, 0, 0, (-1, 0, 0), 0, 0)
"""The network's status before its first report."""


class ProgressReporter:
    """Keeps the figures that only progress reports need, and makes the reports.

    Thirteen attributes, because each figure of a report is measured by itself.
    """

    def __init__(self, spool: Spool, on_progress: Callable[[Progress], None], author: bytes) -> None:
        """`author` is this volunteer's public key."""
        self.run = RunWatch(author)
        """The run, by the messages that pass."""
        self._spool = spool
        self._on_progress = on_progress
        self._tokens_per_s = 0.0
        self._tokens = 0
        self._seconds = 0.0
        self._reward_recent: float | None = None
        self._add_rewards(spool.newest_rewards(_REMEMBERED_REWARDS))
        self._report_at = 0.0
        self._rested = False
        self._back_at = -math.inf
        self._peers: Mapping[str, int] = {}
        self.announced_version = -1
        """Newest version announced by the learner."""
        self.announced_step = -1
        """Its learner step."""

    def announce(self, version: int, step: int, now: float) -> None:
        """Note a version announced by the learner, unless a newer one is known."""
        if version > self.announced_version:
            self.announced_version, self.announced_step = version, step
            self.run.on_version(step, now)

    def link(self, peers: Iterable[tuple[str, int]], now: float) -> Mapping[str, int]:
        """Note the links by the peers' role names, and return them."""
        self._peers = dict(peers)
        self.run.on_links(self._peers, now)
        return self._peers

    def add_decoding(self, rewards: Iterable[float], *, tokens: int, seconds: float) -> None:
        """Note a turn of decoding: the mean reward of each finished group, the tokens sampled and the time it took."""
        self._add_rewards(rewards)
        self._tokens += tokens
        self._seconds += seconds
        if self._seconds >= _RATE_S or not self._tokens_per_s:
            self._tokens_per_s = self._tokens / max(self._seconds, 1e-9)
        if self._seconds >= _RATE_S:
            self._tokens, self._seconds = 0, 0.0

    def report(
        self,
        now: float,
        *,
        state: str,
        version: int,
        status: control.Status | None,
        publish_every: int = 0,
        resting: bool = False,
        hears_learner: bool = False,
        final: bool = False,
    ) -> None:
        """Report, at most every `_REPORT_S` unless a rest begins or ends, or this is the final report. `publish_every`
        as in `RunWatch`."""
        if now < self._report_at and not final and resting == self._rested:
            return
        if self._rested and not resting:
            self._back_at = now
        self._rested = resting
        self._report_at = now + _REPORT_S
        if not resting and now < self._back_at + _SEARCH_S and not any(self._peers.values()):
            state = SEARCHING
        network = status or NO_STATUS
        self._on_progress(
            Progress(
                state=state,
                step=self.announced_step,
                version=version,
                announced_version=self.announced_version,
                peers=self._peers,
                groups=self._spool.counts(),
                reasons=self._spool.reasons(),
                verified_tokens=self._spool.verified_tokens(),
                reward_recent=self._reward_recent,
                tokens_per_s=self._tokens_per_s,
                fetching=network.fetching,
                weight_bytes_from_learner=network.received_from_source,
                weight_bytes_from_peers=network.received_from_peers,
                weight_bytes_over_circuits=network.received_over_circuits,
                weight_bytes_sent=network.sent,
                patch_bytes=network.patch_bytes,
                whole_bytes=network.full_bytes,
                brought_bytes=network.version_bytes,
                spared_bytes=network.saved_bytes,
                network_resident_bytes=network.resident_bytes,
                network_daemon_bytes=network.daemon_bytes,
                files=network.files,
                reach=network.reach,
                resting=resting,
                hears_learner=hears_learner,
                run=self.run.view(now, publish_every=publish_every),
            )
        )

    def _add_rewards(self, rewards: Iterable[float]) -> None:
        for reward in rewards:
            before = reward if self._reward_recent is None else self._reward_recent
            self._reward_recent = before + _REWARD_WEIGHT * (reward - before)
