"""State machine of a board in the swarm: takes ledger entries and heads, returns requests and replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from p2prl.errors import RemoteProtocolError
from p2prl.net.process import control
from p2prl.protocol import limits
from p2prl.protocol.envelope import Opened, body_of, open_envelope
from p2prl.protocol.identity import Identity, PeerId, peer_id_of
from p2prl.protocol.join_link import JoinLink, peers_of
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_chain import page_of
from p2prl.protocol.ledger_messages import Countersignature, LedgerHead
from p2prl.protocol.run_end import RunEnd
from p2prl.scoreboard.ledger.known_run import KnownRun, open_run_manifest
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from p2prl.scoreboard.ledger.plain_chain import Chain
from p2prl.scoreboard.ledger.signed_head import Countersigner, Witness
from p2prl.scoreboard.ledger.verified_ledger import VerifiedLedger
from p2prl.swarm import signals

ASK_S = 5.0
"""Seconds between requests while nothing happens; news triggers the next request at once."""

_MIN_ASK_S = 1 / limits.MAX_LEDGER_QUERIES_PER_S
"""Shortest time between two requests: a burst of receipts sends one, which stays below the peers' rate limit."""


_SILENT_S = 60.0
"""Seconds without a link to the learner or a message signed by it, after which the page says that it is offline."""


class LearnerContact:
    """Time when the learner was last heard of: a link to it, or the signing time of a message that peers forward."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._heard = 0.0

    def tick(self, now: float) -> None:
        """Note the time: a board that has just started has not had time to hear of the learner."""
        if self._began is None:
            self._began = now

    def heard(self, at: float, now: float) -> None:
        """Record a sign of life of the learner at `at`; a signing time may be ahead of this clock."""
        self._heard = max(self._heard, min(at, now))

    def offline_since(self, newest_receipts: float, now: float) -> float | None:
        """When the learner was last heard of if that is too long ago, else None."""
        began = now if self._began is None else self._began
        heard = max(self._heard, min(newest_receipts, now))
        return (heard or began) if now - max(heard, began) > _SILENT_S else None


class LedgerFollower:
    """Follows one run's ledger. The owner passes in messages of the network process and sends those returned.

    Chain, room and signer are settings, because a board, a mirror and a validator's mirror differ in them alone.
    """

    def __init__(
        self,
        store: LedgerStore,
        *,
        run: bytes,
        join_link: JoinLink | None = None,
        new_chain: Callable[[KnownRun], Chain] = KnownRun.new_fold,
        max_bytes: int | None = None,
        signer: Identity | None = None,
    ) -> None:
        """`new_chain` as for `VerifiedLedger`. No further entries are asked for beyond `max_bytes`. `signer` is the key
        that countersigns the learner's heads once their entries are verified here."""
        self._store = store
        self._new_chain = new_chain
        self._max_bytes = max_bytes
        self._signer = None if signer is None else Countersigner(signer, run)
        self._run_digest = run
        self._join_link = join_link
        self._link_peers: tuple[str, ...] = ()
        """Addresses of listed peers that are linked here."""
        self._ledger: VerifiedLedger | None = None
        self._told_height = 0
        """Height that the network process announces."""
        self._run_end = RunEnd()
        self._now = 0.0
        self._policy_version: int | None = None
        self._learner_step: int | None = None
        self._connected_peers: dict[str, int] = {}
        self._learner_contact = LearnerContact()
        self._ask_at = 0.0
        self._asked_at = -_MIN_ASK_S
        if store.manifest:
            self._begin(store.manifest)

    def receive(self, message: control.FromNetwork, now: float) -> list[control.ToNetwork]:
        """Handle one message of the network process; returns what to send it. `now` is seconds since the epoch."""
        self._now = now
        self._learner_contact.tick(now)
        match message:
            case control.RunKnown(manifest=raw):
                return self._on_manifest(raw)
            case signals.VersionAnnounced(version=version, step=step):
                self._policy_version = max(version, self._policy_version or 0)
                self._learner_step = max(step, self._learner_step or 0)
                self._run_end.on_policy(step)
            case control.Status(peers=peers, link_peers=link_peers):
                self._connected_peers, self._link_peers = dict(peers), link_peers
                if self._connected_peers.get(Role.LEARNER.name.lower()):
                    self._learner_contact.heard(now, now)
            case control.EnvelopeArrived(envelope=raw):
                self._on_envelope(open_envelope(raw, now=None), now)
                return self._height_served()
            case signals.LedgerArrived(from_height=height, entries=entries):
                return self._on_page(height, entries, now)
            case signals.LedgerWanted(peer=peer, from_height=height):
                page = page_of(self.entries(height, limits.MAX_LEDGER_ENTRIES_PER_REPLY))
                return [signals.SendLedger(peer, height, page)]
            case _:
                pass
        return []

    def handle_timer(self, now: float) -> list[control.ToNetwork]:
        """Request the next entries when a request is due."""
        self._now = now
        self._learner_contact.tick(now)
        if self._ledger is None:
            return []
        self._ledger.advance()
        told = [*self._height_served(), *self._countersign(self._ledger, now)]
        is_full = self._max_bytes is not None and self._store.size_bytes >= self._max_bytes
        if now < max(self._ask_at, self._asked_at + _MIN_ASK_S) or is_full:
            return told
        self._asked_at, self._ask_at = now, now + ASK_S
        return [signals.AskLedger(self._ledger.next_height), *told]

    def introduce(self) -> list[control.ToNetwork]:
        """Messages for a fresh network process: the height served here, and a final ledger head.

        The final head is published again because after the end of a run this board may be the last peer that has it.
        """
        head = self._ledger.confirmed if self._ledger is not None else None
        final = [signals.Publish(head.raw)] if head is not None and head.finished and self._run_end.is_announced else []
        self._told_height = 0
        return [*self._height_served(), *final]

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Counted entries from a height on: others may be a stranger's."""
        counted = 0 if self._ledger is None else self._ledger.height - from_height
        return self._store.entries(from_height, min(limit, max(0, counted)))

    def witnesses(self) -> tuple[Witness, ...]:
        """Countersignatures of heads that the chain here agrees with."""
        return () if self._ledger is None else self._ledger.countersignatures()

    def snapshot(self) -> Snapshot:
        """The state shown on the page."""
        ledger = self._ledger
        head = None if ledger is None else ledger.confirmed
        board = None if ledger is None else ledger.state()
        receipts = 0.0 if board is None else (board.newest_ms() or 0) / 1000
        return Snapshot(
            run=None if ledger is None else ledger.run,
            board=board,
            policy_version=self._policy_version,
            learner_step=self._learner_step,
            connected_peers=dict(sorted(self._connected_peers.items())),
            signed_height=None if head is None else head.height,
            signed_head=b"" if head is None else head.raw,
            finished=self._run_end.is_over(self._now),
            learner_offline_since=self._learner_contact.offline_since(receipts, self._now),
            incident=self._store.incident,
            join_link="" if ledger is None else self._link_to_show(ledger.run),
            total_steps=None,
            unproven_entries=0 if ledger is None else ledger.next_height - ledger.height,
        )

    def _link_to_show(self, run: KnownRun) -> str:
        """The link for the page: of the peers that it was made with, the learner and those that are listed now.

        The link that started this board may be of a day, or a release, on which it named others.
        """
        if self._join_link is None:
            return ""
        listed = frozenset[PeerId]().union(*map(peers_of, self._link_peers))
        every = tuple(dict.fromkeys((*self._join_link.bootstrap, *self._link_peers)))
        link = replace(self._join_link, bootstrap=every).published(peer_id_of(run.manifest.learner), listed)
        return str(replace(link, bootstrap=link.bootstrap[: limits.MAX_ADDRESSES])) if link.bootstrap else ""

    def _on_manifest(self, raw: bytes) -> list[control.ToNetwork]:
        if self._ledger is None:
            self._begin(raw)
            self._store.keep_manifest(raw)
        self._told_height = 0  # a network process that has just started announces nothing
        return [*self._height_served(), *self._heads_to_show()]

    def _begin(self, raw: bytes) -> None:
        run = open_run_manifest(raw)
        if run.run != self._run_digest:
            raise RemoteProtocolError("run manifest does not match the join link")
        self._ledger = VerifiedLedger(self._store, run, self._new_chain)
        for head in self._store.heads():
            opened = open_envelope(head, now=None)
            self._on_head(self._ledger, opened, opened.sent_ms / 1000)  # verified on arrival
        self._ledger.replay()

    def _on_page(self, from_height: int, entries: tuple[bytes, ...], now: float) -> list[control.ToNetwork]:
        if self._ledger is None:
            return []
        if self._ledger.append(from_height, entries):
            self._ask_at = now  # there may be more
        return self._height_served()

    def _on_envelope(self, opened: Opened, now: float) -> None:
        if isinstance(opened.body, LedgerHead) and self._ledger is not None:
            self._on_head(self._ledger, opened, now)
        elif isinstance(opened.body, Countersignature) and self._ledger is not None:
            self._ledger.add_countersignature(opened)
        self._ask_at = min(self._ask_at, now)

    def _on_head(self, ledger: VerifiedLedger, opened: Opened, now: float) -> None:
        ledger.add_head(opened)
        body = body_of(opened, LedgerHead)
        self._run_end.on_head(body, opened.sent_ms, now=now)
        self._learner_contact.heard(opened.sent_ms / 1000, now)
        self._learner_step = max(body.step, self._learner_step or 0)

    def _heads_to_show(self) -> list[control.ToNetwork]:
        """Heads and countersignatures for a node that has just begun: it shows them to late readers."""
        head = None if self._ledger is None else self._ledger.confirmed
        shown = [] if head is None else [head.raw]
        shown += [*self._store.proofs, *(raw for _, _, raw in self._store.countersignatures())]
        return [signals.Publish(raw) for raw in dict.fromkeys(shown)]

    def _countersign(self, ledger: VerifiedLedger, now: float) -> list[control.ToNetwork]:
        """Countersign the newest head whose entries are here, unless the learner has contradicted itself."""
        if self._signer is None or ledger.confirmed is None or self._store.incident is not None:
            return []
        signed = self._signer.sign(ledger.confirmed, now)
        if not signed:
            return []
        ledger.add_countersignature(open_envelope(signed, now=None))
        return [signals.Publish(signed)]

    def _height_served(self) -> list[control.ToNetwork]:
        """Tell the network process how many entries are served here, if it is not what it announces."""
        if self._ledger is None or self._ledger.height == self._told_height:
            return []
        self._told_height = self._ledger.height
        return [signals.SetLedgerHeight(self._told_height)]
