"""Owner of a machine's work at a time: the one rule by which learner, boards and readers of a ledger agree.

A key owns its own work until a delegation gives it to another. The owner of a machine at time t is the owner of the
first delegation of it, in the order in which they were taken in, that covers t and that no revocation of the same pair
voids at t; the machine itself when there is none. So

* a machine belongs to one owner at a time, and moves to another only when the first one's delegation has ended: a
  thief of a machine's key cannot take its credited work to another owner,
* a delegation signed before a revocation does not come back after it,
* owners are not followed further: an owner that is itself a delegate keeps the work of its own machines.

The table is bounded over all keys (`p2prl.protocol.limits`). Pure: times are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable

from p2prl.protocol import limits
from p2prl.protocol.delegation import Delegation, Revocation


class Ownership:
    """Delegations and revocations of one run, in the order in which they were taken in."""

    def __init__(self) -> None:
        self._delegations: dict[bytes, list[Delegation]] = {}
        self._revocations: dict[tuple[bytes, bytes], list[Revocation]] = {}
        self._machines: dict[bytes, set[bytes]] = {}

    def delegate(self, delegation: Delegation) -> str | None:
        """Take in a checked delegation that its machine sent. Returns the rule that refuses it, or None.

        A second one of the same pair with the same or a smaller serial changes nothing and is refused.
        """
        known = self._delegations.get(delegation.delegate, [])
        if any(d.owner == delegation.owner and d.serial >= delegation.serial for d in known):
            return "second_delegation"
        machines = self._machines.get(delegation.owner, set())
        if (
            len(known) >= limits.MAX_DELEGATIONS_PER_DELEGATE
            or (delegation.delegate not in machines and len(machines) >= limits.MAX_DELEGATES_PER_OWNER)
            or (not known and len(self._delegations) >= limits.MAX_DELEGATES)
        ):
            return "too_many_delegations"
        self._delegations.setdefault(delegation.delegate, []).append(delegation)
        self._machines.setdefault(delegation.owner, set()).add(delegation.delegate)
        return None

    def revoke(self, revocation: Revocation) -> str | None:
        """Take in a checked revocation; anybody may have sent it. Returns the rule that refuses it, or None."""
        pair = revocation.owner, revocation.delegate
        if revocation.delegate not in self._machines.get(revocation.owner, ()):
            return "revocation_of_nothing"
        known = self._revocations.get(pair, [])
        if any(r.serial >= revocation.serial and r.from_ms <= revocation.from_ms for r in known):
            return "second_revocation"
        known = [r for r in known if r.serial > revocation.serial or r.from_ms < revocation.from_ms]
        if len(known) >= limits.MAX_REVOCATIONS_PER_PAIR:
            return "too_many_revocations"
        self._revocations[pair] = [*known, revocation]
        return None

    def owner_at(self, machine: bytes, at_ms: int) -> bytes:
        """Public key of the owner of a machine's work receipted at a time, Unix milliseconds."""
        for delegation in self._delegations.get(machine, ()):
            if delegation.covers(at_ms) and not self._is_void(delegation, at_ms):
                return delegation.owner
        return machine

    def works_for(self, machine: bytes, owner: bytes) -> bool:
        """Whether a machine is the owner itself, or any delegation of it by this owner was taken in."""
        return machine == owner or machine in self._machines.get(owner, ())

    def is_delegate(self, machine: bytes) -> bool:
        """Whether any delegation of a machine was taken in, in force or not."""
        return machine in self._delegations

    def owners_of(self, machine: bytes) -> frozenset[bytes]:
        """Keys that may ever own a machine's work, its own included."""
        return frozenset({machine, *(delegation.owner for delegation in self._delegations.get(machine, ()))})

    def related(self, machine: bytes) -> frozenset[bytes]:
        """Keys that may ever share an owner with a machine, itself included: its owners and all their machines."""
        owners = self.owners_of(machine)
        return frozenset(owners.union(*(self._machines.get(owner, ()) for owner in owners)))

    def _is_void(self, delegation: Delegation, at_ms: int) -> bool:
        revocations: Iterable[Revocation] = self._revocations.get((delegation.owner, delegation.delegate), ())
        return any(revocation.voids(delegation, at_ms) for revocation in revocations)
