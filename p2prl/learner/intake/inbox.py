"""Handle messages from the network: groups and verdicts, ledger queries, and warnings."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from p2prl.learner.following.followed import Followed
from p2prl.learner.following.own_heads import check_own
from p2prl.learner.intake.intake import Intake
from p2prl.learner.journal.journal import Journal
from p2prl.learner.signing_sender import SigningSender
from p2prl.net.process import control
from p2prl.protocol import ledger_chain, limits
from p2prl.swarm import signals


class Inbox:
    """Reads the network's messages and dispatches them."""

    def __init__(
        self,
        intake: Intake,
        journal: Journal,
        sender: SigningSender,
        on_notice: Callable[[str], None],
        on_offers: Callable[[signals.StandbyOffers], None],
        on_lost: Callable[[str], None],
        followed: Followed,
    ) -> None:
        self._intake = intake
        self._journal = journal
        self._followed = followed
        self._sender = sender
        self._on_notice = on_notice
        self._on_offers = on_offers
        self._on_lost = on_lost

    @property
    def figures(self) -> dict[str, float]:
        """Groups turned away and verdicts checked, as keys of the metrics log."""
        return self._intake.figures

    def read(self, timeout_s: float, *, step: int, finished: bool) -> None:
        """Take the messages that arrived, waiting up to `timeout_s` for the first, and answer them.

        `step` and `finished` go into the ledger head that announces new verdicts.
        """
        envelopes: list[bytes] = []
        for message in self._sender.network.poll(timeout_s):
            match message:
                case control.EnvelopeArrived(envelope=raw):
                    check_own(raw, self._journal)
                    envelopes.append(raw)
                case control.GroupFetched(envelope=header, path=path):
                    with contextlib.suppress(FileNotFoundError):  # it expired meanwhile, and is announced again
                        self._intake.receive_body(header, Path(path).read_bytes())
                case signals.LedgerWanted(peer=peer, from_height=from_height):
                    most = min(limits.MAX_LEDGER_ENTRIES_PER_REPLY, self._followed.ledger_height - from_height)
                    entries = self._journal.ledger.entries(from_height, max(0, most))
                    self._sender.network.send(signals.SendLedger(peer, from_height, ledger_chain.page_of(entries)))
                case signals.FollowWanted():
                    self._followed.on_wanted(message)
                case signals.StandbyOffers():
                    self._on_offers(message)
                case signals.LinkLost(peer=peer):
                    self._on_lost(peer)
                case control.Warned(text=text):
                    self._on_notice(text)
                case _:
                    pass
        if envelopes and self._intake.receive(envelopes):
            self._sender.send_ledger_head(step=step, finished=finished)
        self._followed.turn(step=step)
        for released in self._followed.take_released():
            self._sender.network.send(released)
