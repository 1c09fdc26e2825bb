"""First phase of a node: wait for the run manifest behind the join link."""

from __future__ import annotations

import math

from p2prl.errors import LocalProtocolError, RemoteProtocolError, StaleWorkError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, envelope_digest, open_envelope
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind, Role
from p2prl.swarm.events import RunRefused
from p2prl.swarm.node_core import NodeCore
from p2prl.swarm.node_phase import Phase
from p2prl.swarm.policies.download_stats import DownloadStats
from p2prl.swarm.running import Running

MOST_EARLY = 128
"""Ledger heads and countersignatures kept until the manifest says who their learner is."""

MOST_EARLY_BYTES = 1_024
"""Of one of them: a countersignature has about 400 bytes, and nothing of it has been verified yet."""

_EARLY = frozenset({bytes([Kind.LEDGER_HEAD]), bytes([Kind.COUNTERSIGNATURE])})


class AwaitingManifest:
    """Asks every peer for the run manifest and accepts nothing else."""

    def __init__(self, core: NodeCore) -> None:
        self._core = core
        self._early: dict[Digest, tuple[bytes, PeerId]] = {}

    def on_link(self, peer: PeerId) -> None:
        """Ask the peer for the manifest."""
        self._core.gossip.ask(self._core.local.run, [peer])

    def on_hello(self, peer: PeerId, role: Role, newest_version: int, now: float) -> None:
        """Nothing to send: no version is known."""

    def on_push(self, raw: bytes, source: PeerId, now: float) -> Phase:
        """Start running if this is the manifest."""
        name = envelope_digest(raw)
        if name == self._core.local.run:
            opened = open_envelope(raw, now=now)
            try:
                running = Running(self._core, opened, now)
            except RemoteProtocolError as error:  # the link names it by its digest: no other peer has a better one
                self._core.events.append(RunRefused(str(error)))
                return self
            self._take_early(running, now)
            return running
        if not self._core.gossip.is_new(name):
            self._core.on_repeated(name, raw, source, now)
        elif raw[1:2] in _EARLY and len(raw) <= MOST_EARLY_BYTES and len(self._early) < MOST_EARLY:
            self._early[name] = raw, source
        return self

    def _take_early(self, running: Running, now: float) -> None:
        """Take in the ledger heads that came before the manifest: peers push them once, at the first hello."""
        for raw, source in self._early.values():
            try:
                running.on_push(raw, source, now)
            except StaleWorkError:
                continue
            except RemoteProtocolError as error:
                self._core.punish(source, error, now)

    def admit_own(self, opened: Opened, now: float) -> None:  # noqa: ARG002 - nothing to compare with yet
        """Refuse versions and ledger heads: the learner's key is in the manifest."""
        if opened.kind in (Kind.POLICY_MANIFEST, Kind.POLICY_HEAD):
            raise LocalProtocolError("a policy was published before its run manifest is known")
        if opened.kind in (Kind.LEDGER_HEAD, Kind.COUNTERSIGNATURE):
            raise RemoteProtocolError("a ledger head before the run manifest is known: its learner cannot be checked")

    def retry(self, now: float) -> None:  # noqa: ARG002 - any time will do
        """Ask every peer for the manifest."""
        self._core.gossip.ask_all(self._core.local.run)

    def handle_timer(self, now: float) -> None:
        """Nothing is timed."""

    def next_deadline(self) -> float:
        """Never."""
        return math.inf

    def advance(self, now: float) -> None:
        """Nothing is downloaded."""

    def accept_run(self, disk_bytes: int, now: float) -> None:
        """Ignored: the owner decides after `RunKnown`."""

    def fetch_policy(self, name: Digest, now: float) -> None:
        """Ignored: the owner calls it again after `RunKnown`."""

    def start_from(self, digest: Digest | None, now: float) -> None:
        """Ignored: the owner reports its base after `RunKnown`."""

    def rebuilt(self, name: Digest, ok: bool, now: float) -> None:
        """Ignored: nothing is being rebuilt."""

    def download_stats(self) -> DownloadStats:
        """Nothing downloaded."""
        return DownloadStats()

    def transfer_progress(self) -> tuple[int, int, int]:
        """Idle."""
        return -1, 0, 0

    def file_progress(self) -> tuple[int, int]:
        """Nothing known yet."""
        return 0, 0
