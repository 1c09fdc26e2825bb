"""Pay of each verdict, which depends on who owns the validator and the sampler when the learner signs its check.

A verdict on a group of one's own owner, or of an owner in one's own team, earns nothing. Statements about owners may
reach the ledger after the check, so each verdict's pay is kept in a compact record, and a statement counts again those
that it can concern. A membership concerns later checks alone (`p2prl.protocol.team_membership`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from p2prl.protocol.ownership import Ownership
from p2prl.protocol.team_membership import Teams

_COLUMNS = 3
"""When the check was signed, Unix milliseconds; tokens; whether they are paid."""


class PayRecord(NamedTuple):
    """Place of one verdict's record."""

    validator: bytes
    peer: bytes
    place: int


class VerdictPay:
    """Tokens of verdicts that passed their check, by validator and sampler."""

    def __init__(self, ownership: Ownership, teams: Teams) -> None:
        self._ownership = ownership
        self._teams = teams
        self._records: dict[bytes, dict[bytes, array[int]]] = {}
        """By validator, then by sampler: `_COLUMNS` numbers a verdict, 24 bytes."""
        self._validators_of: dict[bytes, set[bytes]] = {}
        """Validators with a record on a sampler's groups."""

    def earn(self, validator: bytes, peer: bytes, at_ms: int, tokens: int) -> PayRecord:
        """Record a verdict whose check passed."""
        records = self._records.setdefault(validator, {}).setdefault(peer, array("q"))
        self._validators_of.setdefault(peer, set()).add(validator)
        records.extend((at_ms, tokens, self._is_paid(validator, peer, at_ms)))
        return PayRecord(validator, peer, len(records) - _COLUMNS)

    def paid(self, record: PayRecord) -> tuple[int, int]:
        """When the check of a verdict was signed, Unix milliseconds, and the tokens it is paid now."""
        at_ms, tokens, is_paid = self._records[record.validator][record.peer][record.place : record.place + _COLUMNS]
        return at_ms, tokens * is_paid

    def void(self, record: PayRecord) -> None:
        """The verdict earns nothing, whatever is said about owners later."""
        self._records[record.validator][record.peer][record.place + 1] = 0

    def recount(self, machine: bytes) -> Iterator[tuple[bytes, int, int]]:
        """After a statement about a machine: (validator, time of the check, change of tokens) of each changed verdict.

        Only those between the machine and others that may share an owner with it: a statement costs no more. When one
        of its owners was in a team, all of the machine's, as for its receipts: anybody may be in that team.
        """
        peers: Iterable[bytes] = self._records.get(machine, ())
        validators: Iterable[bytes] = self._validators_of.get(machine, ())
        if not any(map(self._teams.was_member, self._ownership.owners_of(machine))):
            others = self._ownership.related(machine)
            peers, validators = others.intersection(peers), others.intersection(validators)
        pairs = {(machine, peer) for peer in peers} | {(validator, machine) for validator in validators}
        for validator, peer in sorted(pairs):
            records = self._records[validator][peer]
            for place in range(0, len(records), _COLUMNS):
                at_ms, tokens, before = records[place : place + _COLUMNS]
                after = self._is_paid(validator, peer, at_ms)
                if after != before:
                    records[place + 2] = after
                    if tokens:
                        yield validator, at_ms, tokens * (after - before)

    def _is_paid(self, validator: bytes, peer: bytes, at_ms: int) -> bool:
        return not self._teams.are_allied(validator, peer, at_ms)
