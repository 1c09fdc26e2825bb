"""The seeder's role: serve a run's weights without sampling. The network process does the work; this class monitors it.

It needs no torch: chunks go from disk to peers, and patches are decoded without it, for any model size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from p2prl.clock import Clock
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.order_follower import OrderFollower
from p2prl.net.process.run_preparation import OnManifest, RunPreparation
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.run_end import RunEnd
from p2prl.swarm import signals

_POLL_S = 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Seeding:
    """Snapshot of a seeder for display and its status file.

    Each figure is a field, because the panel and the status file show all of them.
    """

    state: str
    version: int
    """Newest version announced; −1 before the first."""
    chunks_held: int
    """Of the version being downloaded; 0 when idle."""
    chunks: int
    peers: Mapping[str, int] = field(default_factory=dict)
    """Links by the peers' role names."""
    received_bytes: int = 0
    received_from_learner_bytes: int = 0
    received_over_circuits_bytes: int = 0
    sent_bytes: int = 0
    uploaded_bytes_month: int = 0
    """By this worker folder in this calendar month, over all runs."""
    upload_bytes_s: float = 0.0
    """The cap, set or measured; 0 while unknown."""
    reach: str = ""
    """How others reach it; empty while unknown."""
    network_resident_bytes: int = 0
    network_daemon_bytes: int = 0


class Seeder:
    """Seeds one run until `stop` is called or the run ends."""

    def __init__(
        self,
        *,
        clock: Clock,
        on_manifest: OnManifest,
        on_progress: Callable[[Seeding], None],
        on_notice: Callable[[str], None],
        on_waiting: Callable[[tuple[str, ...]], None] | None = None,
    ) -> None:
        """`on_notice` gets messages for the user. With `on_waiting`, which gets its addresses, it stays until the run's
        learner dials it."""
        self._clock = clock
        self._preparation: RunPreparation[None] = RunPreparation(
            lambda _, __: None, on_manifest, waits=on_waiting is not None
        )
        self._on_waiting = on_waiting
        self._on_progress = on_progress
        self._on_notice = on_notice
        self._run_end = RunEnd()
        self._version = -1
        self._status: control.Status | None = None
        self._stopping = False
        self.owner = OrderFollower(clock)
        """Where the owner's orders are given; a rest leaves the network."""

    def stop(self) -> None:
        """Leave at the next turn."""
        self._stopping = True

    def run(self, network: NetworkPort) -> bool:
        """Seed until `stop` is called or the learner ends the run. Returns True in the latter case."""
        self.owner.attach(network)
        try:
            for wait_s in self.owner.turns(self._preparation, is_due=self._goes_on, poll_s=_POLL_S):
                self._turn(network, wait_s)
            return not self._stopping
        finally:
            network.close()

    def _goes_on(self) -> bool:
        return not self._stopping and not self._run_end.is_over(self._clock.now())

    def _turn(self, network: NetworkPort, wait_s: float) -> None:
        self.owner.follow_network(self.owner.order)
        for message in network.poll(wait_s):
            self._take(message)
        self._preparation.answer(network)
        self._on_progress(self.progress())

    def progress(self) -> Seeding:
        """The current snapshot."""
        status = self._status
        searching = "waiting for the run's learner" if self._on_waiting else "looking for the run"
        if status is None:
            return Seeding(state=searching, version=self._version, chunks_held=0, chunks=0)
        version, held, total = status.fetching
        if self.owner.is_suspended:
            state = self.owner.order.reason or "joining the network again"
        elif status.budget_spent:
            state = "paused: the monthly upload limit is reached"
        elif self._preparation.manifest is None:
            state = searching
        else:
            state = "fetching" if version >= 0 else "seeding"
        return Seeding(
            state=state,
            version=self._version,
            chunks_held=held,
            chunks=total,
            peers=dict(status.peers),
            received_bytes=status.received_from_source + status.received_from_peers,
            received_from_learner_bytes=status.received_from_source,
            received_over_circuits_bytes=status.received_over_circuits,
            sent_bytes=status.sent,
            uploaded_bytes_month=status.uploaded_bytes_month,
            upload_bytes_s=status.upload_bytes_s,
            reach=status.reach,
            network_resident_bytes=status.resident_bytes,
            network_daemon_bytes=status.daemon_bytes,
        )

    def _take(self, message: control.FromNetwork) -> None:
        match message:
            case control.NetworkUp(addresses=addresses) if self._on_waiting and self._preparation.manifest is None:
                self._on_waiting(addresses)
            case control.RunKnown():
                self._preparation.take(message)
            case signals.VersionAnnounced(version=version, step=step):
                self._version = max(self._version, version)
                self._run_end.on_policy(step)
            case control.EnvelopeArrived(envelope=raw):
                opened = open_envelope(raw, now=None)
                if opened.kind is Kind.LEDGER_HEAD:
                    self._run_end.on_head(body_of(opened, LedgerHead), opened.sent_ms, now=self._clock.now())
            case control.Status():
                self._status = message
            case control.Warned(text=text):
                self._on_notice(text)
            case _:
                pass
