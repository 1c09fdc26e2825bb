"""Mirror of a run's ledger beside another role: it stores and serves the chain, and a validator's countersigns it.

It sits between the role and its network: the role sees every message as before, and a board or another reader can get
the ledger here when the learner is away.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from p2prl.clock import Clock
from p2prl.errors import P2PRLError, RemoteProtocolError
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.passing_port import PassingPort
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Kind
from p2prl.scoreboard.ledger.known_run import KnownRun
from p2prl.scoreboard.ledger.ledger_follower import LedgerFollower
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from p2prl.scoreboard.ledger.plain_chain import PlainChain

log = logging.getLogger("p2prl.scoreboard")

_WANTED = frozenset({Kind.LEDGER_HEAD, Kind.COUNTERSIGNATURE})
"""Envelopes that concern a mirror, by the byte after the array's head; entries come by pages."""


class MirroringPort(PassingPort):
    """A role's network port that also mirrors the ledger, from `begin` on. Close it."""

    def __init__(
        self, port: NetworkPort, store: Path, *, run: bytes, clock: Clock, signer: Identity | None = None
    ) -> None:
        """`store` is the file of the mirror; `signer` is the key that countersigns, if any."""
        super().__init__(port)
        self._file = store
        self._run = run
        self._clock = clock
        self._signer = signer
        self._known: control.RunKnown | None = None
        self._store: LedgerStore | None = None
        self._follower: LedgerFollower | None = None

    def begin(self, max_bytes: int) -> None:
        """Mirror up to this many bytes of entries: the machine's owner has accepted the run. 0 mirrors nothing."""
        if max_bytes <= 0 or self._store is not None:
            return
        try:
            self._store = LedgerStore(self._file, run=self._run)
        except P2PRLError as error:
            log.warning("the ledger is not mirrored: %s", error)
            return
        self._follower = LedgerFollower(
            self._store, run=self._run, new_chain=_plain_chain, max_bytes=max_bytes, signer=self._signer
        )
        if self._known is not None:
            self._take(self._known)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """See `NetworkPort`; the mirror has taken what concerns it."""
        messages = super().poll(timeout_s)
        for message in messages:
            self._take(message)
        self._do(lambda follower, now: follower.handle_timer(now))
        return messages

    def close(self) -> None:
        """See `NetworkPort`; closes the mirror's file too."""
        super().close()
        self._end()

    def _take(self, message: control.FromNetwork) -> None:
        if isinstance(message, control.RunKnown):
            self._known = message
        if not isinstance(message, control.EnvelopeArrived) or message.envelope[1] in _WANTED:
            self._do(lambda follower, now: follower.receive(message, now))

    def _do(self, act: Callable[[LedgerFollower, float], list[control.ToNetwork]]) -> None:
        if self._follower is None:
            return
        try:
            answers = act(self._follower, self._clock.now())
        except RemoteProtocolError as error:
            log.warning("the mirror refused a message: %s", error)
            return
        except P2PRLError as error:  # a full disk ends the mirror, not the role's own work
            log.warning("the ledger is not mirrored any more: %s", error)
            self._end()
            return
        for answer in answers:
            self._port.send(answer)

    def _end(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = self._follower = None


def _plain_chain(run: KnownRun) -> PlainChain:
    return PlainChain(run=run.run, learner=run.manifest.learner)
