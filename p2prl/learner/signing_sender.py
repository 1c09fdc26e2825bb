"""Sign message bodies with the learner's key and send them through the attached network process."""

from __future__ import annotations

from p2prl.clock import Clock
from p2prl.learner.journal.journal import Journal
from p2prl.net.process.bridge import NetworkPort
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm import signals


class SigningSender:
    """Signs and sends. The network is attached later, and may be replaced."""

    def __init__(self, identity: Identity, run: Digest, journal: Journal, clock: Clock) -> None:
        self._identity = identity
        self._run = run
        self._journal = journal
        self._clock = clock
        self._network: NetworkPort | None = None

    def attach(self, network: NetworkPort) -> None:
        """Send through this network from now on."""
        self._network = network

    @property
    def network(self) -> NetworkPort:
        """The network in use; `attach` comes first."""
        assert self._network is not None
        return self._network

    def wake(self) -> None:
        """End a poll of the network that waits, from any thread."""
        if self._network is not None:
            self._network.wake()

    def sign(self, body: Wire) -> bytes:
        """Seal a body in an envelope of this run, signed now."""
        return seal(self._identity, body, run=self._run, now=self._clock.now())

    def send(self, envelope: bytes) -> None:
        """Publish an envelope that was signed before."""
        self.network.send(signals.Publish(envelope))

    def send_ledger_head(self, *, step: int, finished: bool) -> None:
        """Publish the ledger's height, head and the run's step."""
        self.network.send(signals.SetLedgerHeight(self._journal.ledger.height))
        self.send(self.sign_ledger_head(step=step, finished=finished))

    def sign_ledger_head(self, *, step: int, finished: bool) -> bytes:
        """Sign the ledger's newest entry, the run's step and whether the run has ended, and write it down."""
        ledger = self._journal.ledger
        head = self.sign(LedgerHead(ledger.height, ledger.head, step, finished))
        with self._journal.transaction():
            ledger.keep_head(head)
        return head
