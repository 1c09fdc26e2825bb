"""First phase of a node: wait for the run manifest behind the join link."""

from __future__ import annotations

from p2prl.errors import LocalProtocolError, RemoteProtocolError, StaleWorkError
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, envelope_digest, open_envelope
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Kind
from p2prl.swarm.events import RunRefused
from p2prl.swarm.node_core import NodeCore
from p2prl.swarm.node_in_run import Running

MOST_EARLY = 128
"""Envelopes kept until the manifest says who their learner is."""

MOST_EARLY_BYTES = 128 * 1024
"""Of one peer: a policy head has up to 100 KiB, and nothing of it has been verified yet."""

_EARLY = {bytes([kind]) for kind in (Kind.LEDGER_HEAD, Kind.COUNTERSIGNATURE, Kind.POLICY_HEAD, Kind.POLICY_MANIFEST)}
"""Kinds that peers push at a hello, for nothing only once."""


class AwaitingManifest:
    """Asks every peer for the run manifest and accepts nothing else."""

    def __init__(self, core: NodeCore) -> None:
        self._core = core
        self._early: dict[Digest, tuple[bytes, PeerId]] = {}

    def on_link(self, peer: PeerId) -> None:
        """Ask the peer for the manifest."""
        self._core.gossip.ask(self._core.local.run, [peer])

    def on_push(self, raw: bytes, source: PeerId, now: float) -> Running | None:
        """The second phase, if this is the manifest."""
        name = envelope_digest(raw)
        if name == self._core.local.run:
            opened = open_envelope(raw, now=now)
            try:
                running = Running(self._core, opened, now)
            except RemoteProtocolError as error:  # the link names it by its digest: no other peer has a better one
                self._core.events.append(RunRefused(str(error)))
                return None
            self._take_early(running, now)
            return running
        if not self._core.gossip.is_new(name):
            self._core.on_repeated(name, raw, source, now)
        elif raw[1:2] in _EARLY and len(self._early) < MOST_EARLY:
            held = sum(len(other) for other, peer in self._early.values() if peer == source)
            if held + len(raw) <= MOST_EARLY_BYTES:
                self._early[name] = raw, source
        return None

    def _take_early(self, running: Running, now: float) -> None:
        """Take in the heads and versions that came before the manifest."""
        for raw, source in self._early.values():
            try:
                running.on_push(raw, source, now)
            except StaleWorkError:
                continue
            except RemoteProtocolError as error:
                self._core.punish(source, error, now)

    def admit_own(self, opened: Opened) -> None:
        """Refuse versions and ledger heads: the learner's key is in the manifest."""
        if opened.kind in (Kind.POLICY_MANIFEST, Kind.POLICY_HEAD):
            raise LocalProtocolError("a policy was published before its run manifest is known")
        if opened.kind in (Kind.LEDGER_HEAD, Kind.COUNTERSIGNATURE):
            raise RemoteProtocolError("a ledger head before the run manifest is known: its learner cannot be checked")

    def retry(self) -> None:
        """Ask every peer for the manifest."""
        self._core.gossip.ask_all(self._core.local.run)
