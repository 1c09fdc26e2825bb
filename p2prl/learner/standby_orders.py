"""The learner's messages that put volunteers on standby, and when to send them again."""

from __future__ import annotations

import contextlib
import math

from p2prl.clock import Clock
from p2prl.errors import IdentityError
from p2prl.learner.signing_sender import SigningSender
from p2prl.learner.timing.standby import RENEW_S, STANDBY_S, StandbyChoice
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.protocol.peer_messages import Standby
from p2prl.swarm.signals import StandbyOffers


class StandbyOrders:
    """Tells volunteers that agreed to it when the run can do without them."""

    def __init__(self, choice: StandbyChoice, sender: SigningSender, clock: Clock) -> None:
        self._choice = choice
        self._sender = sender
        self._clock = clock
        self._sent: tuple[bytes, ...] = ()
        self._sent_at = -math.inf

    @property
    def figures(self) -> dict[str, float]:
        """Volunteers on standby, as a key of the metrics log; empty while there are none."""
        return self._choice.figures

    def offered(self, offers: StandbyOffers) -> None:
        """Take in who agrees to stand by."""
        self._choice.offered(dict(offers.prices))

    def group_verified(self, peer: bytes) -> None:
        """Record that a group of a volunteer has passed."""
        self._choice.delivered(peer, self._clock.now())

    def link_lost(self, peer: str) -> None:
        """Let others work in place of a volunteer that seems to have left."""
        with contextlib.suppress(IdentityError):  # another kind of key has delivered nothing
            self._choice.left(public_key_of(PeerId(peer)))

    def updated(self, *, waited: float, waiting_groups: int) -> None:
        """Choose anew after an update."""
        self._choice.updated(self._clock.now(), waited=waited, waiting=waiting_groups)

    def send_due(self) -> None:
        """Send the choice if it has changed, and again before it ends."""
        peers, now = self._choice.peers, self._clock.now()
        if peers == self._sent and (not peers or now - self._sent_at < RENEW_S):
            return
        self._sent, self._sent_at = peers, now
        self._sender.send(self._sender.sign(Standby(peers, until_ms=int((now + STANDBY_S) * 1000))))
