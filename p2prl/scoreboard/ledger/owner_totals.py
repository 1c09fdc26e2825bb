"""Totals of contributors by owner: one row of the board for all machines of a person; and of owners by team.

A receipt counts for the owner of its machine at the time at which the learner signed it (`p2prl.protocol.ownership`),
and for the team that this owner was in then (`p2prl.protocol.team_membership`).
A delegation or a revocation may reach the ledger later than receipts it decides about; the machine's receipts are then
counted again from a compact record. So the totals depend on the ledger alone, and their sum on the receipts alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from p2prl.protocol.delegation import Delegation, Revocation
from p2prl.protocol.digests import DIGEST_BYTES, digest
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.protocol.ownership import Ownership
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.team_membership import Teams
from p2prl.scoreboard.ledger.escrow import forfeited, with_credited_tokens
from p2prl.scoreboard.ledger.hourly_totals import HourlyTotals
from p2prl.scoreboard.ledger.marks import OWN_GROUPS, own_marks, passed
from p2prl.scoreboard.ledger.total_rows import Person

OTHER_REASON = "other"
"""Replaces every unknown reason code: a receipt's free text is never shown."""

_REASONS = (OTHER_REASON, *sorted(reason.value for reason in RejectionReason))
_PLACE = {reason: place for place, reason in enumerate(_REASONS)}
_COLUMNS = 7

CREDITED = (ReceiptState.VERIFIED, ReceiptState.CREDITED_BY_SAMPLING)
"""States of groups that earn credit."""


class CountedReceipt(NamedTuple):
    """What the totals need of a receipt: integers, 56 bytes in the record."""

    sent_ms: int
    step: int
    state: int
    reason: int
    """Place of its reason code in the list of known ones."""
    completions: int
    tokens: int
    reward_micros: int
    """Sum over its completions of the group's mean reward, millionths."""


def reason_place(reason: str) -> int:
    """Place of a reason code in the list of known ones; that of `OTHER_REASON` for any other text."""
    return _PLACE.get(reason, 0)


class OwnerTotals:
    """Contributors by owner, and the machines of each."""

    def __init__(self) -> None:
        self.people: dict[bytes, Person] = {}
        """By the owner's public key."""
        self.machines: dict[bytes, Mapping[bytes, Person]] = {}
        """The same by owner, then by machine; an inner mapping is replaced and never changed."""
        self.hours = HourlyTotals()
        """Credited work by hour, owner and team."""
        self.ownership = Ownership()
        """Who owned which machine when."""
        self.teams = Teams(self.ownership)
        """Which owner was in which team when."""
        self.marks: dict[bytes, Mapping[int, int]] = {}
        """By owner: when it passed each of `OWN_GROUPS` credited groups, ms; an inner mapping is replaced."""
        self.revoked: dict[tuple[bytes, bytes], int] = {}
        """By (owner, machine), of those whose newest delegation is revoked: since when, ms."""
        self._receipts: dict[bytes, array[int]] = {}
        """By machine, `_COLUMNS` numbers a receipt."""
        self._groups: dict[bytes, bytearray] = {}
        """By machine, the digests of the receipts' groups."""

    def add(self, machine: bytes, receipt: CountedReceipt, group: bytes) -> None:
        """Count a receipt of a machine on a group."""
        self._receipts.setdefault(machine, array("q")).extend(receipt)
        self._groups.setdefault(machine, bytearray()).extend(group)
        owner = self.ownership.owner_at(machine, receipt.sent_ms)
        machines = self.machines.get(owner, {})
        before = machines.get(machine)
        after = self._counted(owner, machine, before, receipt, group)
        self.machines[owner] = {**machines, machine: after}
        counted = self.people.get(owner)
        self.people[owner] = person = _moved(_added(counted, receipt), counted, before, after)
        already = counted.credited_groups if counted else 0
        for mark in passed(OWN_GROUPS, already, person.credited_groups):
            self.marks[owner] = {**self.marks.get(owner, {}), mark: receipt.sent_ms}

    def take(self, statement: Delegation | Revocation) -> str | None:
        """Take in a checked statement and count its machine's receipts again. Returns the rule that ignores it."""
        ownership = self.ownership
        rule = ownership.delegate(statement) if isinstance(statement, Delegation) else ownership.revoke(statement)
        if rule is None:
            self._count_again(statement.delegate)
            pair = statement.owner, statement.delegate
            from_ms = ownership.revoked_from(statement.delegate, statement.owner)
            if from_ms is None:
                self.revoked.pop(pair, None)
            else:
                self.revoked[pair] = from_ms
        return rule

    def _count_again(self, machine: bytes) -> None:
        shares: dict[bytes, Person] = {}
        self.hours.forget(machine)
        for receipt, group in self._receipts_of(machine):
            owner = self.ownership.owner_at(machine, receipt.sent_ms)
            shares[owner] = self._counted(owner, machine, shares.get(owner), receipt, group)
        before = {owner for owner, machines in self.machines.items() if machine in machines}
        for owner in before | set(shares):
            machines = {key: person for key, person in self.machines.get(owner, {}).items() if key != machine}
            if owner in shares:
                machines[machine] = shares[owner]
            self.marks.pop(owner, None)
            if not machines:
                del self.machines[owner], self.people[owner]
                continue
            self.machines[owner] = machines
            first, *others = machines.values()
            for other in others:
                first = first.merged(other)
            self.people[owner] = replace(first, escrow=(), receipts_chain=b"")
            if first.credited_groups >= OWN_GROUPS[0]:
                self.marks[owner] = own_marks(self._credited_ms(owner))

    def _counted(
        self, owner: bytes, machine: bytes, before: Person | None, receipt: CountedReceipt, group: bytes
    ) -> Person:
        """A machine's totals for an owner with one more receipt; the hours follow."""
        after = _added(before, receipt)
        if receipt.state in CREDITED:
            team = self.teams.team_at(owner, receipt.sent_ms)
            self.hours.credit(owner, machine, receipt.sent_ms, receipt.tokens, team)
        elif after.forfeited_tokens > (before.forfeited_tokens if before else 0):
            self.hours.forfeit(owner, machine)
        return replace(after, receipts_chain=_chained(after.receipts_chain, receipt, group))

    def _credited_ms(self, owner: bytes) -> Iterator[int]:
        """When the learner signed for each credited group that counts for an owner."""
        for machine in self.machines[owner]:
            for receipt, _ in self._receipts_of(machine):
                if receipt.state in CREDITED and self.ownership.owner_at(machine, receipt.sent_ms) == owner:
                    yield receipt.sent_ms

    def _receipts_of(self, machine: bytes) -> Iterator[tuple[CountedReceipt, bytes]]:
        numbers, groups = self._receipts.get(machine, array("q")), bytes(self._groups.get(machine, b""))
        for place in range(len(numbers) // _COLUMNS):
            receipt = CountedReceipt(*numbers[place * _COLUMNS : (place + 1) * _COLUMNS])
            yield receipt, groups[place * DIGEST_BYTES : (place + 1) * DIGEST_BYTES]


def receipts_root(machines: Mapping[bytes, Person]) -> bytes:
    """Digest of all receipts that count for an owner: over its machines in order of their keys (docs/protocol.md)."""
    chains = [part for key in sorted(machines) for part in (key, machines[key].receipts_chain)]
    return digest("p2prl/receipts-root/v1", *chains)


def _chained(chain: bytes, receipt: CountedReceipt, group: bytes) -> bytes:
    """A machine's chain of receipts with one more."""
    numbers = (receipt.state, receipt.tokens, receipt.completions, receipt.step)
    return digest("p2prl/receipts-chain/v1", chain, group, *(number.to_bytes(8, "little") for number in numbers))


def _added(before: Person | None, receipt: CountedReceipt) -> Person:
    """A contributor's totals with one more receipt."""
    if before is None:
        sent_ms = receipt.sent_ms
        before = Person(first_step=receipt.step, last_step=receipt.step, first_ms=sent_ms, last_ms=sent_ms)
    person = replace(
        before,
        first_step=min(before.first_step, receipt.step),
        last_step=max(before.last_step, receipt.step),
        first_ms=min(before.first_ms, receipt.sent_ms),
        last_ms=max(before.last_ms, receipt.sent_ms),
    )
    reason = _REASONS[receipt.reason]
    if receipt.state == ReceiptState.REJECTED:
        counts = {**person.rejected, reason: person.rejected.get(reason, 0) + 1}
        person = replace(person, rejected=dict(sorted(counts.items())))
        return forfeited(person) if reason == RejectionReason.EXCLUDED else person
    if receipt.state == ReceiptState.EXPIRED:
        counts = {**person.expired, reason: person.expired.get(reason, 0) + 1}
        return replace(person, expired=dict(sorted(counts.items())))
    verified = receipt.state == ReceiptState.VERIFIED
    return replace(
        with_credited_tokens(person, receipt.tokens),
        verified_groups=person.verified_groups + verified,
        sampled_groups=person.sampled_groups + (not verified),
        completions=person.completions + receipt.completions,
        reward_micros=person.reward_micros + receipt.reward_micros,
    )


def _moved(counted: Person, owner: Person | None, before: Person | None, after: Person) -> Person:
    """An owner's row with one more receipt: its tokens, escrow and forfeits change as those of the machine do."""

    def change(of: Callable[[Person], int]) -> int:
        return (of(owner) if owner else 0) + of(after) - (of(before) if before else 0)

    return replace(
        counted,
        tokens=change(lambda row: row.tokens),
        receipts_chain=b"",
        escrow=(),
        escrow_tokens=change(lambda row: row.escrow_tokens),
        forfeited_tokens=change(lambda row: row.forfeited_tokens),
    )
