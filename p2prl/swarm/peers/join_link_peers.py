"""Choice of the peers that a join link names beside the learner: listed ones, those first that have been up for long.

A link is published, and it joins a peer's id to its address. So it names nobody who has not chosen that: a seeder, or a
role started with `--public`, says so in its signed record.

They let a newcomer in while the learner is away or elsewhere. They can stall it at worst: the link carries the run's
digest, and everything else is signed. Pure.
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

SHOW_LINKS = frozenset({Role.LEARNER, Role.BOARD})
"""Roles that show join links."""

MOST_PEERS = 3
"""Peers beside the learner: a link of four stays under 500 characters, and one of three strangers is up."""

_PROVEN_S = {Role.SEEDER: 300.0, Role.VALIDATOR: 1_800.0, Role.VOLUNTEER: 1_800.0}
"""How long a peer must have been linked, by role: people start a seeder to keep it up, and stop to volunteer."""

_EARLY_S = 10.0
"""Others are named after this long, while there is room: without them a young link names the learner alone. They leave
it when they are away or a proven peer needs their place."""

_GONE_S = 900.0
"""A proven peer that is away for shorter stays in the link: it restarts, and links that people copied name it."""


class LinkPeers:
    """The peers that the join link names now."""

    def __init__(self) -> None:
        self._named: dict[PeerId, tuple[str, ...]] = {}
        self._seen_at: dict[PeerId, float] = {}
        """When each proven peer that is named was linked last."""

    def update(
        self, linked: Iterable[LinkedRecord], rules: DialRules, now: float, *, is_public: bool
    ) -> tuple[str, ...]:
        """Multiaddrs with peer ids: one for each peer, then those of the other IP version. `is_public` says that the
        link has an address of the internet: then private ones of its peers help nobody."""
        records = list(linked)
        unread = {record.peer for record in records if record.is_listed is None}
        """They have started again, and their place waits for what their new record says."""
        for record in records:
            if record.is_listed is False:  # it has taken its word back: it leaves at once, however long it has been up
                self._named.pop(record.peer, None)
        candidates = {
            record.peer: (record, addresses)
            for record in records
            if record.is_listed
            and record.role in _PROVEN_S
            and (now - record.since >= _EARLY_S or record.peer in self._named)
            and (addresses := _addresses_of(record, rules, is_public=is_public))
        }
        proven = {peer for peer, at in self._seen_at.items() if peer in candidates or now - at < _GONE_S}
        proven |= {peer for peer, (record, _) in candidates.items() if now - record.since >= _PROVEN_S[record.role]}
        kept = {
            peer: candidates[peer][1] if peer in candidates else addresses
            for peer, addresses in self._named.items()
            if peer in proven
        }

        def worth(peer: PeerId) -> tuple[bool, bool, bool, float, PeerId]:
            record = candidates[peer][0]
            return peer not in proven, peer not in self._named, record.role is not Role.SEEDER, record.since, peer

        for one_provider in (False, True):  # all of one provider only if there is nobody else
            for peer in sorted(candidates, key=worth):
                addresses = candidates[peer][1]
                taken = {provider_of(other) for others in kept.values() for other in others}
                is_new = taken.isdisjoint(map(provider_of, addresses))
                if len(kept) < MOST_PEERS and peer not in kept and (one_provider or is_new):
                    kept[peer] = addresses
        self._named = {peer: kept[peer] for peer in dict.fromkeys((*self._named, *kept)) if peer in kept}
        self._seen_at = {peer: now if peer in candidates else self._seen_at[peer] for peer in kept if peer in proven}
        shown = {peer: addresses for peer, addresses in self._named.items() if peer not in unread}
        turns = zip_longest(*([(peer, address) for address in addresses] for peer, addresses in shown.items()))
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
