"""Slot accounts in the journal: note each group that arrives, and void those that pay for lost slots."""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from p2prl.errors import RemoteProtocolError
from p2prl.learner.intake import slot_accounts
from p2prl.learner.intake.admission import Outcome
from p2prl.learner.intake.slot_accounts import SlotAccount
from p2prl.learner.journal.journal import Journal
from p2prl.learner.storage import LearnerStorage
from p2prl.models.groups.group_work import GroupWork
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.wire_codec import decode, encode

_MAX_ACCOUNT_BYTES = 1024 * 1024
"""Of one account. It has some 50 bytes for each gap, of which there are `MAX_OPEN_GAPS`, or a few times more where many
slots have no valid work."""

MAX_CHARGED = 65_536
"""Peers whose missing slots are remembered, about 20 MB: as many as have a standing. The one whose slots changed
longest ago is forgotten first."""

HasWork = Callable[[bytes, int, int], bool]
"""(public key, version, slot) → whether the slot has valid work, as far as it is known."""


def _own_identity(peer: bytes) -> bytes:
    return peer


class SlotPrices:
    """The slot accounts of all peers. They are read from the journal each time; of peers with missing slots alone, what
    these are charged is in memory, since the standing of their owners depends on it."""

    def __init__(
        self,
        journal: Journal,
        *,
        secret: bytes,
        has_work: HasWork = lambda *_: True,
        identity_of: Callable[[bytes], bytes] = _own_identity,
    ) -> None:
        """`secret` decides which groups are voided, always in the same way; `identity_of` gives the key that stands for
        a peer's owner."""
        self._journal = journal
        self._secret = secret
        self._has_work = has_work
        self._identity_of = identity_of
        self._charged: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        """(identity, slots) by peer."""
        self._by_identity: Counter[bytes] = Counter()
        for peer, encoded in journal.slot_accounts.all():
            self._note(peer, _decoded(encoded))

    def charged(self, identity: bytes) -> int:
        """Missing slots that all keys of an identity are charged now."""
        return self._by_identity[identity]

    def has_room(self, peer: bytes, slot: int, *, now: float) -> bool:
        """Whether a group of this slot may be stored now: it opens no gap that its peer has not saved for."""
        account = self._read(peer)
        return account is None or slot_accounts.has_room(
            account, slot, now=now, has_work=partial(self._has_work, peer), is_delegate=self._is_delegate(peer)
        )

    def arrived(self, peer: bytes, slot: int, version: int, *, stale: bool, now: float) -> str:
        """Note a group that is about to be stored, within the transaction that does so.

        Returns the reason for which it will be rejected, or an empty text.
        """
        account = self._read(peer) or slot_accounts.account_before(slot, version, now)
        arrival = slot_accounts.arrived(account, slot, version, stale=stale, now=now)
        account = slot_accounts.swept(
            arrival.account, now, partial(self._has_work, peer), is_delegate=self._is_delegate(peer)
        )
        self._journal.slot_accounts.write(peer, encode(account))
        self._note(peer, account)
        if arrival.awaited:
            return ""
        came_before = self._journal.groups.slot_came(peer, slot)
        return str(RejectionReason.DUPLICATE_SLOT if came_before else RejectionReason.WITHHELD_SLOTS)

    def price(self, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], dict[bytes, SlotAccount]]:
        """The outcomes, those rejected that pay for lost slots, and the accounts to `write` with the receipts."""
        accounts: dict[bytes, SlotAccount] = {}
        return [self._price(outcome, accounts) for outcome in outcomes], accounts

    def write(self, accounts: dict[bytes, SlotAccount]) -> None:
        """Write accounts, within the transaction that writes the receipts."""
        for peer, account in accounts.items():
            self._journal.slot_accounts.write(peer, encode(account))

    def _price(self, outcome: Outcome, accounts: dict[bytes, SlotAccount]) -> Outcome:
        peer = outcome.stored.peer
        account = accounts.get(peer) or self._read(peer)
        if account is None:
            return outcome
        if outcome.state is ReceiptState.REJECTED:
            accounts[peer] = slot_accounts.rejected(account, outcome.reason)
        elif outcome.state is ReceiptState.VERIFIED:
            draw = slot_accounts.void_draw(self._secret, peer, outcome.stored.slot)
            accounts[peer], is_voided = slot_accounts.verified(account, draw)
            if is_voided:
                return dataclasses.replace(
                    outcome, state=ReceiptState.REJECTED, reason=RejectionReason.WITHHELD_SLOTS, rewards=()
                )
        return outcome

    def _read(self, peer: bytes) -> SlotAccount | None:
        """A peer's account; None when no group of it has come."""
        if (encoded := self._journal.slot_accounts.read(peer)) is not None:
            return _decoded(encoded)
        if (highest := self._journal.groups.highest_slot(peer)) is None:
            return None
        return SlotAccount(highest + 1, -1, outside=highest + 1)  # a journal of a release that kept no accounts

    def _is_delegate(self, peer: bytes) -> bool:
        return self._identity_of(peer) != peer

    def _note(self, peer: bytes, account: SlotAccount) -> None:
        """Remember what a peer is charged. For the owner it has now: a delegation that ends takes nothing along."""
        self._forget(peer)
        if charged := account.charged:
            identity = self._identity_of(peer)
            self._charged[peer] = identity, charged
            self._by_identity[identity] += charged
            if len(self._charged) > MAX_CHARGED:
                self._forget(next(iter(self._charged)))

    def _forget(self, peer: bytes) -> None:
        if (known := self._charged.pop(peer, None)) is not None:
            identity, charged = known
            self._by_identity[identity] -= charged
            if not self._by_identity[identity]:
                del self._by_identity[identity]


def _decoded(account: bytes) -> SlotAccount:
    return decode(account, SlotAccount, limit_bytes=_MAX_ACCOUNT_BYTES)


def slots_with_work(work: GroupWork, storage: LearnerStorage) -> HasWork:
    """Whether a slot has valid work under a version; True for one that has left the window."""

    def has_work(peer: bytes, version: int, slot: int) -> bool:
        policy = storage.published.at(version)
        if policy is None:
            return True
        try:
            work.assign(beacon=policy.manifest.beacon, peer=peer, slot=slot)
        except RemoteProtocolError:
            return False
        return True

    return has_work
