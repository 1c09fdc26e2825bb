"""Peers of the join link: who is named, for how long, and who never is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2prl.protocol.kinds import Role
from p2prl.sim.machines import identity_of
from p2prl.swarm.peers.dial_rules import DialRules, rules_for
from p2prl.swarm.peers.join_link_peers import MOST_PEERS, LinkPeers
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
    is_listed: bool | None = True,
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
        is_listed=is_listed,
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
    ("role", "for_s", "is_proven"),
    [
        (Role.SEEDER, 299, False),
        (Role.SEEDER, 300, True),
        (Role.VOLUNTEER, 1_799, False),
        (Role.VOLUNTEER, 1_800, True),
        (Role.VALIDATOR, 1_800, True),
    ],
)
def test_peers_that_have_been_up_stay_while_they_restart(role: Role, for_s: float, is_proven: bool) -> None:
    peers = LinkPeers()
    assert names(peers, linked("s", "8.8.1.1", role=role, for_s=for_s)) == ["8.8.1.1"]
    assert bool(names(peers, now=NOW + 1)) is is_proven


@pytest.mark.parametrize("role", [Role.LEARNER, Role.BOARD])
def test_roles_that_relay_nothing_are_never_named(role: Role) -> None:
    assert names(LinkPeers(), linked("s", "8.8.1.1", role=role, for_s=1e6)) == []


@pytest.mark.parametrize(("for_s", "named"), [(9.9, False), (10.0, True)])
def test_a_young_link_names_whoever_stays_for_seconds(for_s: float, named: bool) -> None:
    assert bool(names(LinkPeers(), linked("s", "8.8.1.1", for_s=for_s))) is named


def test_peers_that_have_been_up_take_the_places_of_others() -> None:
    peers = LinkPeers()
    young = [linked(f"s{i}", f"{20 + i}.1.1.1", for_s=20 + i) for i in range(4)]
    assert names(peers, *young) == ["23.1.1.1", "22.1.1.1", "21.1.1.1"]
    old = [linked(f"old{i}", f"{30 + i}.1.1.1", for_s=300) for i in range(3)]
    assert set(names(peers, *young, old[0])) == {"23.1.1.1", "22.1.1.1", "30.1.1.1"}
    assert set(names(peers, *young, *old)) == {"30.1.1.1", "31.1.1.1", "32.1.1.1"}


def test_a_young_link_does_not_change_with_every_arrival() -> None:
    peers = LinkPeers()
    first = [linked(f"s{i}", f"{20 + i}.1.1.1", for_s=20) for i in range(3)]
    before = names(peers, *first)
    better = linked("better", "99.1.1.1", for_s=299)
    assert names(peers, *first, better) == before
    assert names(peers, *first[1:], better, now=NOW + 1) == [*(n for n in before if n != "20.1.1.1"), "99.1.1.1"]


def test_who_was_named_early_and_stays_is_proven_in_time() -> None:
    peers = LinkPeers()
    record = linked("s", "8.8.1.1", for_s=20)
    assert names(peers, record) == ["8.8.1.1"]
    assert names(peers, record, now=NOW + 280) == ["8.8.1.1"]
    assert names(peers, now=NOW + 281) == ["8.8.1.1"], "away for a second"


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


@pytest.mark.parametrize("role", [Role.VOLUNTEER, Role.VALIDATOR, Role.SEEDER])
def test_nobody_is_named_who_has_not_chosen_it(role: Role) -> None:
    assert names(LinkPeers(), linked("s", "8.8.1.1", role=role, for_s=1e6, is_listed=False)) == []
    assert names(LinkPeers(), linked("s", "8.8.1.1", role=role, for_s=1e6)) == ["8.8.1.1"]


def test_who_takes_its_word_back_leaves_at_once_and_does_not_come_back_while_away() -> None:
    peers = LinkPeers()
    assert names(peers, linked("s", "8.8.1.1")) == ["8.8.1.1"]
    assert names(peers, linked("s", "8.8.1.1", is_listed=False), now=NOW + 1) == []
    assert names(peers, now=NOW + 2) == [], "it was proven, and would have stayed for fifteen minutes"


def test_who_starts_again_is_not_named_before_its_new_word_and_then_has_its_place() -> None:
    peers = LinkPeers()
    others = [linked(f"s{number}", f"{20 + number}.1.1.1", for_s=1_000 - number) for number in range(3)]
    assert names(peers, others[0], linked("s", "8.8.1.1")) == ["8.8.1.1", "20.1.1.1"]
    unread = linked("s", "8.8.1.1", for_s=0, is_listed=None)
    assert names(peers, *others, unread) == ["20.1.1.1", "21.1.1.1"], "nobody takes its place"
    assert names(peers, *others, linked("s", "8.8.1.1", for_s=0), now=NOW + 1) == ["8.8.1.1", "20.1.1.1", "21.1.1.1"]
    assert names(peers, *others, replace(unread, is_listed=False), now=NOW + 2) == ["20.1.1.1", "21.1.1.1", "22.1.1.1"]


def test_who_starts_again_and_says_nothing_loses_its_place_in_time() -> None:
    peers = LinkPeers()
    assert names(peers, linked("s", "8.8.1.1")) == ["8.8.1.1"]
    unread = linked("s", "8.8.1.1", is_listed=None)
    assert names(peers, unread, now=NOW + 901) == []
    assert names(peers, now=NOW + 902) == []
