"""What the learner says: bodies signed with its key, sent through whatever network it has at the moment."""

from __future__ import annotations

from p2prl.clock import Clock
from p2prl.learner.journal import Journal
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.wire_codec import Wire


class SigningSender:
    """Signs and sends. The network may come later, and another may take its place."""

    def __init__(self, identity: Identity, run: Digest, journal: Journal, clock: Clock) -> None:
        self._identity = identity
        self._run = run
        self._journal = journal
        self._clock = clock
        self._network: NetworkPort | None = None

    def attach(self, network: NetworkPort) -> None:
        """Speak through this network from now on."""
        self._network = network

    @property
    def network(self) -> NetworkPort:
        """The network it speaks through; `attach` comes first."""
        assert self._network is not None
        return self._network

    def sealed(self, body: Wire) -> bytes:
        """A body as an envelope of this run, signed now."""
        return seal(self._identity, body, run=self._run, now=self._clock.now())

    def say(self, body: Wire) -> None:
        """Sign a body and send it to everyone it is meant for."""
        self.send(self.sealed(body))

    def send(self, envelope: bytes) -> None:
        """Send what was signed before."""
        self.network.send(control.Publish(envelope))

    def say_head(self, *, step: int, finished: bool) -> None:
        """Tell everyone how far the ledger and the run are."""
        self.network.send(control.SetLedgerHeight(self._journal.height))
        self.send(self.head(step=step, finished=finished))

    def head(self, *, step: int, finished: bool) -> bytes:
        """The ledger's newest entry and the run's step, signed."""
        return self.sealed(LedgerHead(self._journal.height, self._journal.head, step, finished))
