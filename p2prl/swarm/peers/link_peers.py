"""Choice of the peers that a join link names beside the learner: public ones that have been up for long. Pure.

They let a newcomer in while the learner is away or elsewhere. They can stall it at worst: the link carries the run's
digest, and everything else is signed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, zip_longest

from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.swarm.peers.meetings import is_direct_public
from p2prl.swarm.peers.peer_memory import LinkedRecord
from p2prl.swarm.peers.subnets import provider_of, subnet_of

MOST_PEERS = 3
"""Peers beside the learner: a link of four stays under 500 characters, and one of three strangers is up."""

_PROVEN_S = {Role.SEEDER: 300.0, Role.VALIDATOR: 1_800.0, Role.VOLUNTEER: 1_800.0}
"""How long a peer must have been linked, by role: people start a seeder to keep it up, and stop to volunteer."""

_GONE_S = 900.0
"""A named peer that is away for shorter stays in the link: it restarts, and links that people copied name it."""


class LinkPeers:
    """The peers that the join link names now."""

    def __init__(self, proven_s: float | None = None) -> None:
        """`proven_s` replaces the times of all roles, for tests."""
        self._proven_s = {role: wait if proven_s is None else proven_s for role, wait in _PROVEN_S.items()}
        self._named: dict[PeerId, tuple[str, ...]] = {}
        self._seen_at: dict[PeerId, float] = {}

    def update(
        self, linked: Iterable[LinkedRecord], rules: DialRules, now: float, *, is_public: bool
    ) -> tuple[str, ...]:
        """Multiaddrs with peer ids: one for each peer, then those of the other IP version. `is_public` says that the
        learner has a public address: then addresses of its private networks help nobody."""
        candidates = {}
        for record in linked:
            wait_s = self._proven_s.get(record.role)
            if wait_s is None or (record.peer not in self._named and now - record.since < wait_s):
                continue
            addresses = _addresses_of(record, rules, is_public=is_public)
            if addresses:
                candidates[record.peer] = record, addresses
                self._seen_at[record.peer] = now
        kept = {
            peer: candidates[peer][1] if peer in candidates else addresses
            for peer, addresses in self._named.items()
            if now - self._seen_at[peer] < _GONE_S
        }
        order = sorted(
            candidates, key=lambda peer: (candidates[peer][0].role is not Role.SEEDER, candidates[peer][0].since, peer)
        )
        for one_provider in (False, True):  # all of one provider only if there is nobody else
            for peer in order:
                addresses = candidates[peer][1]
                taken = {provider_of(other) for others in kept.values() for other in others}
                is_new = taken.isdisjoint(map(provider_of, addresses))
                if len(kept) < MOST_PEERS and peer not in kept and (one_provider or is_new):
                    kept[peer] = addresses
        self._named = kept
        self._seen_at = {peer: at for peer, at in self._seen_at.items() if peer in kept}
        turns = zip_longest(*([(peer, address) for address in addresses] for peer, addresses in kept.items()))
        return tuple(
            address if "/p2p/" in address else f"{address}/p2p/{peer}"
            for peer, address in filter(None, chain.from_iterable(turns))
        )


def _addresses_of(record: LinkedRecord, rules: DialRules, *, is_public: bool) -> tuple[str, ...]:
    """The addresses to name, IPv4 first; none unless others can dial one where the learner sees the peer itself.

    The learner sees it over one IP version, and most homes have IPv4 alone. So one public address of the other version
    is named too, on the peer's own word: a false one costs a newcomer a dial.
    """
    chosen = [
        address
        for address in rules.chosen(record.addresses, record.peer)
        if (is_direct_public(address) if is_public else "/p2p-circuit" not in address)
    ]
    proven = next((address for address in chosen if subnet_of(address) == record.observed), "")
    if not proven:
        return ()
    other = next((address for address in chosen if _version(address) != _version(proven)), "") if is_public else ""
    return tuple(sorted(filter(None, (proven, other)), key=_version))


def _version(address: str) -> str:
    return address.split("/")[1]
