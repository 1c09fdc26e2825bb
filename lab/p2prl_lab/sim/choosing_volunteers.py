"""Volunteers that choose among valid groups, of a slot's versions or under many keys.

Each samples as much as it likes: its own volunteer only says when a group is due.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.storage.held_weights import read_weights
from p2prl.protocol.delegation import sign_delegation
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.work_slots import VERSIONS_PER_BEACON
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_time import START
from p2prl_lab.sim.cheat import Cheat, PublishingPort
from p2prl_lab.sim.known_version import KnownVersion, rewards_of

_VERSIONS = 8
"""Versions of which a group is the best."""

_SLOTS = 4
"""Slots of which a group is the best."""

_GROUPS_PER_KEY = 4
"""Groups that a key delivers before it is thrown away."""

_EARNED = 16
"""Groups that an owner delivers itself before it makes machines: twice what makes a key known."""

_MACHINES = 32
_DELEGATED_MS = 24 * 3600 * 1000


class _ChoosingPort(PublishingPort):
    """Remembers the newest versions, and lets `_chosen` replace each honest group."""

    def __init__(self, port: NetworkPort, cheat: Cheat) -> None:
        super().__init__(port, self._chosen)
        self._cheat = cheat
        self._known: deque[KnownVersion] = deque(maxlen=_VERSIONS)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """What arrived; weights are kept even if the volunteer skips their version."""
        messages = super().poll(timeout_s)
        for message in messages:
            if isinstance(message, control.VersionReady):
                weights = read_weights(Path(message.path))
                self._known.append(KnownVersion(self._cheat.simulated, message.policy, Digest(message.digest), weights))
        return messages

    def _chosen(self, opened: Opened, group: RolloutGroup) -> Iterator[bytes]:
        raise NotImplementedError

    def _best_slot(self, key: Identity, first: int) -> RolloutGroup:
        """The group with the highest rewards of some slots of a key."""
        newest = self._known[-1]
        return max((newest.group(key, slot) for slot in range(first, first + _SLOTS)), key=rewards_of)


class BestVersionPort(_ChoosingPort):
    """Delivers every slot, under the version whose group has the highest rewards: there is no gap."""

    def _chosen(self, opened: Opened, group: RolloutGroup) -> Iterator[bytes]:
        key, beacon = self._cheat.identity, group.version // VERSIONS_PER_BEACON
        alike = [each for each in self._known if each.manifest.version // VERSIONS_PER_BEACON == beacon]
        best = max([group, *(each.group(key, group.slot) for each in alike)], key=rewards_of)
        yield seal(key, best, run=self._cheat.simulated.run, now=opened.sent_ms / 1000)


class RotatingKeysPort(_ChoosingPort):
    """Delivers the best of some slots under keys that it throws away before their gaps count."""

    def __init__(self, port: NetworkPort, cheat: Cheat) -> None:
        super().__init__(port, cheat)
        names = (identity_of(f"{cheat.identity.peer_id} {number}") for number in itertools.count())
        self._turns = ((key, _SLOTS * turn) for key in names for turn in range(_GROUPS_PER_KEY))

    def _chosen(self, opened: Opened, group: RolloutGroup) -> Iterator[bytes]:
        del opened, group
        if self._known:
            key, first = next(self._turns)
            self._cheat.send(key, self._best_slot(key, first))
        yield from ()


class OwnersMachinesPort(_ChoosingPort):
    """Works until its key is known, and then lets many machines of its own leave out slots."""

    def __init__(self, port: NetworkPort, cheat: Cheat) -> None:
        super().__init__(port, cheat)
        self._machines = [identity_of(f"{cheat.identity.peer_id} machine {number}") for number in range(_MACHINES)]
        self._delivered = 0

    def _chosen(self, opened: Opened, group: RolloutGroup) -> Iterator[bytes]:
        del group
        self._delivered += 1
        if self._delivered <= _EARNED or not self._known:
            yield opened.raw
            return
        turn, place = divmod(self._delivered - _EARNED - 1, _MACHINES)
        machine, signed_ms = self._machines[place], int(START * 1000)
        owned = sign_delegation(
            self._cheat.identity, machine.public_key, serial=signed_ms, expires_ms=signed_ms + _DELEGATED_MS
        )
        self._cheat.send(machine, owned)
        self._cheat.send(machine, self._best_slot(machine, _SLOTS * turn))
