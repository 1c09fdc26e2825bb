"""Delivery of finished groups to the learner: resend unconfirmed groups, and settle each group by its receipt.

A state machine over the spool. It reads no clock and sends nothing: each call takes `now`, and `due` returns the
messages to send.

A group is published once when it is sampled. The learner answers with a storage receipt, then, after checking it, with
a receipt. A group without a storage receipt is sent again while a learner is in reach: linked, or heard of over peers
that pass its receipts on, as a seeder does for homes that reach nobody else. A receipt that did not arrive by gossip is
read from the ledger.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping

from p2prl.client.spool import Spool
from p2prl.errors import IntegrityError, RemoteProtocolError
from p2prl.net.process import control
from p2prl.protocol import ledger_chain, limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, envelope_digest
from p2prl.protocol.kinds import Kind
from p2prl.protocol.ledger_messages import Receipt, Receipts, StorageReceipt
from p2prl.swarm import signals

REDELIVER_S = 5.0
"""How long a group waits for its storage receipt until it is sent again."""

_MAX_REDELIVERED = 16
"""Groups resent at once, together with those resent before that the learner holds and has not settled. Fewer than the
fresh ones it holds at most: groups sampled during an outage do not crowd them out. Fresh ones are not counted, or a
learner that lacks slots of ours, and so serves us last, would never get what it lacks."""

_TRIES = 4
"""Redeliveries in vain after which others than the oldest groups have a turn. Not each time: on a slow line their
storage receipts are late, and more groups would be on their way than the learner should hold."""

_REMEMBERED = 4 * _MAX_REDELIVERED
"""Groups resent earlier than last whose storage receipts may still come."""

_CATCH_UP_S = 10.0
"""How often the ledger is queried for receipts that did not arrive by gossip."""

_PAGES = 1_024
"""Pages of the ledger that can be read over one by one: 150 kB. Past them it is read from its first entry."""

_EXPIRE_S = 10.0
"""How often the spool drops groups that are too old or too many."""

_HEARD_S = 15.0
"""A learner without a link is in reach this long after it signed a receipt: what brought it takes groups back. Not much
longer: a volunteer that has lost its way to the learner must not wait for it."""

_LAST_RECEIPTS_S = 5.0
"""How long a volunteer stays for the next receipt after the learner has ended the run."""

_SETTLING_S = 30.0
"""The same while a learner in reach holds groups of ours: a busy learner needs time to check them."""


class Delivery:
    """Groups not settled yet, and when to resend them.

    It keeps the time at which each message is due next, because it reads no clock and starts no timer.
    """

    def __init__(
        self,
        spool: Spool,
        *,
        author: bytes,
        run: Digest,
        redeliver_s: float,
        on_judged: Callable[[Receipt, bytes], None],
        on_notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`author` is this volunteer's public key. `on_judged` gets each receipt that settles a group, and the
        learner's envelope that it came in; `on_notice` gets messages for the user."""
        self._spool = spool
        self._author = author
        self._run = run
        self._redeliver_s = redeliver_s
        self._on_judged = on_judged
        self._on_notice = on_notice
        self._is_linked = False
        self._heard_at = -math.inf
        """When the learner signed the newest receipt that came without a link to it."""
        self._redeliver_at = 0.0
        self._unstored: set[bytes] = set()
        """Digests of the last redelivery's groups that have no receipt of either kind yet."""
        self._resent = list(spool.oldest_delivered(_MAX_REDELIVERED))
        """Digests of groups resent lately; storage receipts may be slower than the next redelivery. After a restart the
        oldest that a learner holds count as such: they are those, if there are any."""
        self._has_more = False
        """Whether that redelivery left groups for the next one."""
        self._in_vain = 0
        """Redeliveries of which a group was not stored before the next."""
        self._goes_on = False
        """Whether the last redelivery left out the oldest groups, and went on where others had ended."""
        self._gone_on_to: bytes | None = None
        """Digest of the last group that those have come to; None once they came to the newest."""
        self._pages: deque[tuple[int, Digest]] = deque(maxlen=_PAGES)
        """Positions in the ledger at which the newest pages that were read begin."""
        self._catch_up_at = 0.0
        self._expire_at = 0.0
        self._end = _EndWait()

    def learner_in_reach(self, now: float) -> bool:
        """Whether a learner is linked to this node, or was heard lately."""
        return self._is_linked or self.hears_learner(now)

    def hears_learner(self, now: float) -> bool:
        """Whether a learner without a link was heard lately."""
        return now - self._heard_at < _HEARD_S

    def set_links(self, peers: Mapping[str, int]) -> None:
        """The linked peers by role. When a learner comes into reach, groups are sent again at once."""
        linked = bool(peers.get("learner"))
        if linked and not self._is_linked:
            self._redeliver_at = 0.0
        if linked != self._is_linked or not any(peers.values()):
            self._heard_at = -math.inf  # what it said over a link that is gone says nothing about other peers
        self._is_linked = linked

    def hear_learner(self, sent_ms: int, now: float) -> None:
        """A receipt for anybody has come, signed by the learner at `sent_ms`, Unix milliseconds."""
        if self._is_linked:
            return
        was_in_reach = self.learner_in_reach(now)
        self._heard_at = max(self._heard_at, min(sent_ms / 1000, now))
        if not was_in_reach and self.learner_in_reach(now):
            self._redeliver_at = 0.0

    def announce(self, raw: bytes, body: bytes) -> list[control.ToNetwork]:
        """Messages that publish a group just stored. `body` is empty when the envelope holds the group."""
        publish = signals.Publish(raw)
        return [signals.HoldGroup(envelope_digest(raw), body), publish] if body else [publish]

    def on_body_wanted(self, digest: bytes) -> list[control.ToNetwork]:
        """A peer requests the body of a group, and the network no longer has it in memory."""
        if body := self._spool.body(digest):
            return [signals.HoldGroup(digest, body)]
        self.on_refused(digest, "its body is not in the spool")
        return []

    def on_refused(self, digest: bytes, reason: str) -> None:
        """No peer would accept this group: give it up, so that it stops nothing else."""
        if self._spool.give_up(digest, "not_sendable"):
            self._on_notice(f"group {digest.hex()[:8]} cannot be sent and was given up: {reason}")

    def on_storage_receipt(self, receipt: StorageReceipt) -> None:
        """The learner has these groups on disk."""
        self._spool.mark_stored(receipt.groups)
        self._unstored.difference_update(receipt.groups)
        self._redeliver_more()

    def on_receipts(self, receipts: Receipts, sent_ms: int, raw: bytes) -> None:
        """The learner has judged these groups, some of them ours; signed at `sent_ms`, Unix milliseconds. `raw` is the
        envelope that says so."""
        self._settle(receipts, sent_ms, raw)
        self._redeliver_more()

    def on_ledger(self, from_height: int, entries: tuple[bytes, ...], *, learner: bytes, now: float) -> None:
        """Settle groups by a page of the ledger: receipts that did not arrive by gossip, for instance while this
        machine was off."""
        height, head = self._spool.ledger_position
        if from_height != height:
            return
        before = height, head
        try:
            for raw in entries:
                opened, head = ledger_chain.follow(raw, height=height, head=head, run=self._run, learner=learner)
                height += 1
                if opened.kind is Kind.RECEIPTS:
                    self._settle(body_of(opened, Receipts), opened.sent_ms, opened.raw)
        except RemoteProtocolError:
            return  # another peer will be asked next time
        except IntegrityError:
            # This page or one before it was not the learner's: read the newest again, and so on while none follows.
            # Not all of them, or one peer's false answers would keep a long ledger from ever being read. Receipts may
            # be read twice without harm.
            self._spool.ledger_position = self._pages.pop() if self._pages else (0, ledger_chain.GENESIS)
            return
        if height > before[0]:
            self._pages.append(before)
        self._spool.ledger_position = (height, head)
        if entries:  # a page is cut by count or size, so ask for the next one; a peer without more entries is not asked
            self._catch_up_at = now + 1 / limits.MAX_LEDGER_QUERIES_PER_S

    def due(self, now: float, *, run_known: bool) -> list[control.ToNetwork]:
        """Messages to send now: unconfirmed groups and a query for missed receipts. Also drops old groups."""
        messages: list[control.ToNetwork] = []
        if now >= self._expire_at:  # also without a learner in reach: that is when a disk fills up
            self._expire_at = now + _EXPIRE_S
            self._spool.expire(now=now)
        in_reach = self.learner_in_reach(now)
        if now >= self._redeliver_at and in_reach:
            self._redeliver_at = now + self._redeliver_s
            held = self._spool.held(self._resent)
            room = max(0, _MAX_REDELIVERED - len(held))
            unconfirmed = self._next_unconfirmed(room, created_before=now - self._redeliver_s)
            messages += [signals.Publish(raw) for raw in unconfirmed]
            self._unstored = set(map(envelope_digest, unconfirmed))
            earlier = [digest for digest in self._resent if digest not in held and digest not in self._unstored]
            self._resent = [*earlier[-_REMEMBERED:], *held, *self._unstored]
            self._has_more = len(unconfirmed) == room
        if now >= self._catch_up_at and in_reach and run_known:
            self._catch_up_at = now + _CATCH_UP_S
            # Who has lost a storage receipt gets another from a linked learner alone: nodes between take nothing twice.
            is_unanswered = not self._is_linked and bool(self._unstored)
            if is_unanswered or self._spool.has_delivered(created_before=now - _CATCH_UP_S):
                messages.append(signals.AskLedger(self._spool.ledger_position[0]))
        return messages

    def backlog(self, now: float) -> int:
        """Fresh groups that the learner still has to process: those it holds and those in flight.

        Fresh ones need not wait for older groups: neither for those that it was sent again, nor for those in the spool
        that no learner has stored.
        """
        with_learner = self._spool.count_with_learner(created_after=now - self._redeliver_s, now=now)
        return with_learner - len(self._spool.held(self._resent))

    def is_over(self, now: float, *, run_ended: bool) -> bool:
        """Whether to leave: the run has ended, and all receipts have arrived or the next one took too long."""
        if not run_ended:
            self._end = _EndWait()
            return False
        outstanding = self._spool.count_outstanding()
        settling = self.learner_in_reach(now) and self._spool.count_delivered() > 0
        waited_s = self._end.waited_s(outstanding, now)
        return not outstanding or waited_s > (_SETTLING_S if settling else _LAST_RECEIPTS_S)

    def _next_unconfirmed(self, room: int, *, created_before: float) -> list[bytes]:
        """The oldest groups; when they were sent in vain for long, those that follow, as long as these are stored.

        Groups that no learner ever stores then hold up no others.
        """
        if not room:
            return []
        if self._unstored:
            self._in_vain += 1
            self._goes_on = not self._goes_on and self._in_vain % _TRIES == 0
        after = self._gone_on_to if self._goes_on else None
        found = self._spool.undelivered(room, created_before=created_before, after=after)
        was_newest = len(found) < room
        if self._goes_on or self._gone_on_to is None:
            self._gone_on_to = None if was_newest else envelope_digest(found[-1])
        self._goes_on &= not was_newest
        return found

    def _redeliver_more(self) -> None:
        """Once the learner has stored the groups resent last, resend the next ones at once.

        Not all together: thousands of old groups, sampled during an outage, would delay fresh ones.
        """
        if self._has_more and not self._unstored:
            self._redeliver_at = 0.0

    def _settle(self, receipts: Receipts, sent_ms: int, raw: bytes) -> None:
        for receipt in receipts.receipts:
            if receipt.peer != self._author:
                continue
            self._unstored.discard(receipt.group)
            if self._spool.settle(receipt, step=receipts.step, sent_ms=sent_ms):
                self._on_judged(receipt, raw)


class _EndWait:
    """Time since the last receipt, once the run has ended."""

    def __init__(self) -> None:
        self._outstanding: int | None = None
        self._since = 0.0

    def waited_s(self, outstanding: int, now: float) -> float:
        if outstanding != self._outstanding:
            self._outstanding, self._since = outstanding, now
        return now - self._since
