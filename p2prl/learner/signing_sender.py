"""Sign message bodies with the learner's key and send them through the attached network process.

While a standby learner keeps step, everything signed waits until that holds what it says (`p2prl.learner.following`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from p2prl.clock import Clock
from p2prl.learner.journal.journal import Journal
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm import signals


class Holding(Protocol):
    """Holds messages back."""

    def passes(self, message: control.ToNetwork) -> bool:
        """Whether a message may be sent now; else it is held."""
        ...


class SigningSender:
    """Signs and sends. The network is attached later, and may be replaced."""

    def __init__(self, identity: Identity, run: Digest, journal: Journal, clock: Clock) -> None:
        self._identity = identity
        self._run = run
        self._journal = journal
        self._clock = clock
        self._network: NetworkPort | None = None
        self._holding: Holding | None = None

    def hold_by(self, holding: Holding) -> None:
        """Ask before each message whether it has to wait for a standby learner."""
        self._holding = holding

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
        self._post(signals.Publish(envelope))

    def passed(self, messages: Iterable[control.ToNetwork]) -> list[control.ToNetwork]:
        """Those of these that may be sent now; the others are held."""
        return [message for message in messages if self._holding is None or self._holding.passes(message)]

    def send_ledger_head(self, *, step: int, finished: bool) -> None:
        """Publish the ledger's height, head and the run's step."""
        self._post(signals.SetLedgerHeight(self._journal.ledger.height))
        self.send(self.sign_ledger_head(step=step, finished=finished))

    def sign_ledger_head(self, *, step: int, finished: bool) -> bytes:
        """Sign the ledger's newest entry, the run's step and whether the run has ended, and write it down."""
        ledger = self._journal.ledger
        head = self.sign(LedgerHead(ledger.height, ledger.head, step, finished))
        with self._journal.transaction():
            ledger.keep_head(head)
        return head

    def _post(self, message: control.ToNetwork) -> None:
        for each in self.passed([message]):
            self.network.send(each)
