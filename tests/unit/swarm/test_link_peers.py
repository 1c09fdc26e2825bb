"""Peers of the join link: who is named, for how long, and who never is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2prl.protocol.kinds import Role
from p2prl.sim.hosts import identity_of
from p2prl.swarm.peers.dial_rules import DialRules, rules_for
from p2prl.swarm.peers.link_peers import MOST_PEERS, LinkPeers
from p2prl.swarm.peers.peer_memory import LinkedRecord
from p2prl.swarm.peers.subnets import Subnet, subnet_of
from tests.unit.swarm.peer_links import NOW

PUBLIC = DialRules()


def linked(
    name: str,
    host: str,
    *,
    role: Role = Role.SEEDER,
    for_s: float = 10_000.0,
    observed: str = "",
    more: tuple[str, ...] = (),
    end: str = "",
) -> LinkedRecord:
    address = f"/ip4/{host}/tcp/4001{end}"
    return LinkedRecord(
        peer=identity_of(name).peer_id,
        raw=b"",
        role=role,
        addresses=(*more, address),
        observed=Subnet(observed) if observed else subnet_of(address),
        is_chosen=False,
        since=NOW - for_s,
    )


def names(peers: LinkPeers, *records: LinkedRecord, now: float = NOW, is_public: bool = True) -> list[str]:
    return [address.split("/")[2] for address in peers.update(records, PUBLIC, now, is_public=is_public)]


def test_a_seeder_is_named_with_its_public_address_and_id() -> None:
    record = linked("s", "8.8.1.1", more=("/ip4/10.0.0.2/tcp/4001",))
    (address,) = LinkPeers().update([record], PUBLIC, NOW, is_public=True)
    assert address == f"/ip4/8.8.1.1/tcp/4001/p2p/{record.peer}"


def test_a_peer_seen_over_ipv6_is_named_for_homes_with_ipv4_alone() -> None:
    """A newcomer whose network has IPv4 alone found nobody while the learner was away."""
    first, second = (
        replace(
            linked(f"s{number}", f"8.{number}.1.1", more=(f"/ip6/2600:{number}::1/tcp/4001",)),
            observed=subnet_of(f"/ip6/2600:{number}::1/tcp/4001"),
        )
        for number in (8, 9)
    )
    named = names(LinkPeers(), first, second)
    assert set(named[:2]) == {"8.8.1.1", "8.9.1.1"}, "one of each first"
    assert set(named[2:]) == {"2600:8::1", "2600:9::1"}
    private = replace(first, addresses=("/ip4/10.0.0.2/tcp/4001", first.addresses[0]))
    assert names(LinkPeers(), private) == ["2600:8::1"]
    assert names(LinkPeers(), replace(first, observed=Subnet("9.9.9.0/24"))) == [], "one of them has to be proven"


@pytest.mark.parametrize(
    ("role", "for_s", "named"),
    [
        (Role.SEEDER, 299, False),
        (Role.SEEDER, 300, True),
        (Role.VOLUNTEER, 1_799, False),
        (Role.VOLUNTEER, 1_800, True),
        (Role.VALIDATOR, 1_800, True),
        (Role.LEARNER, 1e6, False),
        (Role.BOARD, 1e6, False),
    ],
)
def test_only_peers_that_have_been_up_are_named(role: Role, for_s: float, named: bool) -> None:
    assert bool(names(LinkPeers(), linked("s", "8.8.1.1", role=role, for_s=for_s))) is named


def test_an_address_where_the_peer_was_not_seen_is_not_named() -> None:
    assert names(LinkPeers(), linked("s", "8.8.1.1", observed="9.9.9.0/24")) == []
    assert names(LinkPeers(), linked("s", "8.8.1.1", observed="relay/x")) == []
    assert names(LinkPeers(), linked("s", "10.0.0.2")) == []


def test_on_a_local_network_its_addresses_are_named() -> None:
    rules = rules_for(("/ip4/192.168.1.5/tcp/4001",))
    record = linked("s", "192.168.1.7")
    assert LinkPeers().update([record], rules, NOW, is_public=False) == (f"{record.addresses[0]}/p2p/{record.peer}",)
    assert LinkPeers().update([record], rules, NOW, is_public=True) == ()
    away = linked("s", "192.168.9.7")
    assert LinkPeers().update([away], rules, NOW, is_public=False) == ()


def test_seeders_and_the_longest_linked_come_first_at_most_three_of_different_providers() -> None:
    records = [
        linked("volunteer", "20.1.1.1", role=Role.VOLUNTEER, for_s=90_000),
        linked("short", "21.1.1.1", for_s=500),
        linked("long", "22.1.1.1", for_s=80_000),
        linked("same provider", "22.1.9.1", for_s=70_000),
        linked("middle", "23.1.1.1", for_s=60_000),
    ]
    assert names(LinkPeers(), *records) == ["22.1.1.1", "23.1.1.1", "21.1.1.1"]
    assert names(LinkPeers(), *records[2:4]) == ["22.1.1.1", "22.1.9.1"], "one provider is better than nobody"
    assert len(names(LinkPeers(), *records)) == MOST_PEERS


def test_a_named_peer_stays_while_it_restarts_and_goes_when_it_is_gone() -> None:
    peers = LinkPeers()
    assert names(peers, linked("s", "8.8.1.1")) == ["8.8.1.1"]
    assert names(peers, now=NOW + 899) == ["8.8.1.1"]
    again = linked("s", "8.8.2.1", for_s=-899)
    assert names(peers, again, now=NOW + 899) == ["8.8.2.1"], "back at another address, after no time at all"
    assert names(peers, now=NOW + 899 + 900) == []
    assert names(peers, again, now=NOW + 899 + 901) == ["8.8.2.1"]


def test_a_better_peer_does_not_displace_a_named_one() -> None:
    peers = LinkPeers()
    first = [linked(f"s{i}", f"{20 + i}.1.1.1", for_s=1_000) for i in range(3)]
    before = names(peers, *first)
    assert names(peers, *first, linked("old", "99.1.1.1", for_s=1e6), now=NOW + 1) == before


def test_tests_may_shorten_the_wait() -> None:
    assert names(LinkPeers(proven_s=0.0), linked("v", "8.8.1.1", role=Role.VOLUNTEER, for_s=0.0)) == ["8.8.1.1"]
