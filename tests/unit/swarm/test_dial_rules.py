"""Addresses that strangers may name, and how many of them are dialed."""

from __future__ import annotations

import ipaddress

import pytest

from p2prl.protocol.identity import PeerId
from p2prl.sim.machines import identity_of
from p2prl.swarm.events import Dial
from p2prl.swarm.peers.dial_rules import ADDRESSES_PER_DIAL, DIALS, DIALS_PER_SUBNET, DialBudget, DialRules, rules_for
from tests.unit.swarm.peer_links import NOW, B, connections, dialed, record

PEER = PeerId("PEER")
HOME = rules_for(("/ip4/127.0.0.1/tcp/4001", "/ip4/192.168.1.7/tcp/4001", "/ip4/8.8.4.4/tcp/4001"))
LOCAL = rules_for(("/ip4/127.0.0.1/tcp/4001",))

ALLOWED = [
    "/ip4/9.9.9.9/tcp/4001",
    "/ip4/9.9.9.9/tcp/443/p2p/PEER",
    "/ip6/2600::1/tcp/4001",
    "/ip4/192.168.1.9/tcp/4001",
    "/ip4/9.9.9.9/tcp/4001/p2p/RELAY/p2p-circuit",
    "/ip4/9.9.9.9/tcp/4001/p2p/RELAY/p2p-circuit/p2p/PEER",
    "/dns4/peer.example.org/tcp/4001",
]
REFUSED = [
    "/ip4/127.0.0.1/tcp/4001",
    "/ip6/::1/tcp/4001",
    "/ip6/::ffff:127.0.0.1/tcp/4001",
    "/ip6/64:ff9b::7f00:1/tcp/4001",
    "/ip6/2002:7f00:1::/tcp/4001",
    "/ip4/0.0.0.0/tcp/4001",
    "/ip4/169.254.169.254/tcp/4001",
    "/ip6/fe80::1/tcp/4001",
    "/ip6/2600::1%eth0/tcp/4001",
    "/ip6/fd00::1/tcp/4001",
    "/ip4/192.168.2.1/tcp/4001",
    "/ip4/10.0.0.1/tcp/4001",
    "/ip4/172.17.0.2/tcp/4001",
    "/ip4/100.64.0.1/tcp/4001",
    "/ip4/224.0.0.1/tcp/4001",
    "/ip4/255.255.255.255/tcp/4001",
    "/ip4/9.9.9.9/tcp/22",
    "/ip4/9.9.9.9/tcp/6379",
    "/ip4/9.9.9.9/tcp/0",
    "/ip4/9.9.9.9/tcp/65536",
    "/ip4/9.9.9.9/tcp/٤٠٠١",
    "/ip4/9.9.9.9/udp/4001/quic-v1",
    "/ip4/9.9.9.9/tcp/4001/ws",
    "/ip4/9.9.9.9/tcp/4001/p2p/OTHER",
    "/ip4/10.0.0.1/tcp/4001/p2p/RELAY/p2p-circuit",
    "/ip4/9.9.9.9/tcp/4001/p2p/R/p2p-circuit/p2p/S/p2p-circuit",
    "/ip6/9.9.9.9/tcp/4001",
    "/ip4/9.9.9.9",
    "/dns4/localhost/tcp/4001",
    "/dns4/printer.local/tcp/4001",
    "/dns4/router.lan./tcp/4001",
    "/dns4/intranet/tcp/4001",
    "/dnsaddr/example.org/tcp/4001",
    "",
]


@pytest.mark.parametrize("address", ALLOWED)
def test_what_a_stranger_may_name(address: str) -> None:
    assert HOME.allows(address, PEER)


@pytest.mark.parametrize("address", REFUSED)
def test_what_a_stranger_may_not_name(address: str) -> None:
    assert not HOME.allows(address, PEER)


def test_a_local_run_dials_loopback_and_nothing_else_changes() -> None:
    assert LOCAL.allows("/ip4/127.0.0.1/tcp/4001", PEER)
    assert LOCAL.allows("/ip6/::1/tcp/4001", PEER)
    assert not LOCAL.allows("/ip4/192.168.1.9/tcp/4001", PEER)
    assert not LOCAL.allows("/ip4/127.0.0.1/tcp/22", PEER)
    assert rules_for((), is_local=True).allows("/ip4/127.0.0.1/tcp/4001", PEER)
    assert not rules_for(()).allows("/ip4/127.0.0.1/tcp/4001", PEER)


def test_the_interfaces_networks_count() -> None:
    campus = rules_for((), [ipaddress.ip_network("10.20.0.0/16")])
    assert campus.allows("/ip4/10.20.99.1/tcp/4001", PEER)
    assert not campus.allows("/ip4/10.21.0.1/tcp/4001", PEER)


def test_what_a_name_resolves_to_is_checked_too() -> None:
    assert not HOME.allows_ip(ipaddress.ip_address("127.0.0.1"))
    assert not HOME.allows_ip(ipaddress.ip_address("10.0.0.1"))
    assert HOME.allows_ip(ipaddress.ip_address("9.9.9.9"))
    assert HOME.allows_ip(ipaddress.ip_address("192.168.1.200"))


def test_few_addresses_of_one_record_are_tried() -> None:
    many = tuple(f"/ip4/9.9.9.{index}/tcp/4001" for index in range(8))
    assert DialRules().chosen((REFUSED[0], *many), PEER) == many[:ADDRESSES_PER_DIAL]


def test_dials_are_bounded_over_all_and_into_one_subnet() -> None:
    budget = DialBudget()
    victim = sum(bool(budget.take((f"/ip4/9.9.9.{index}/tcp/4001",), NOW)) for index in range(200))
    assert victim == DIALS_PER_SUBNET.burst
    budget = DialBudget()
    spread = sum(bool(budget.take((f"/ip4/9.{index}.9.9/tcp/4001",), NOW)) for index in range(200))
    assert spread == DIALS.burst
    assert not budget.take(("/ip4/8.8.8.8/tcp/4001",), NOW)
    assert budget.take(("/ip4/8.8.8.8/tcp/4001",), NOW + 1)


def test_records_of_strangers_are_dialed_by_the_rules() -> None:
    links = connections()
    links.discovery.set_addresses(("/ip4/8.8.8.8/tcp/4001", "/ip4/127.0.0.1/tcp/4001"), NOW)
    links.discovery.on_records([record(B, address="/ip4/127.0.0.1/tcp/4001")], NOW)
    assert dialed(links) == []
    links.discovery.on_records([record(B, at=NOW + 1, address="/ip4/9.9.9.9/tcp/4001")], NOW + 1)
    links.handle_timer(NOW + 10)
    (dial,) = [command for command in links.commands if isinstance(command, Dial)]
    assert dial.addresses == ("/ip4/9.9.9.9/tcp/4001",)


def test_a_stranger_that_never_answers_is_left_alone_in_the_end() -> None:
    links = connections(forget_s=1e9)
    stranger = identity_of("stranger")
    links.discovery.on_records([record(stranger)], NOW)
    tried = 0
    for second in range(3600):
        links.handle_timer(NOW + second)
        for peer in dialed(links):
            tried += 1
            links.dial_failed(peer, NOW + second)
    assert tried == 12


def test_many_records_of_one_subnet_are_drawn_like_one() -> None:
    links = connections(max_neighbors=16, random_links=16)
    flood = [record(identity_of(f"flood{index}"), address="/ip4/6.6.6.6/tcp/4001") for index in range(768)]
    honest = [identity_of(f"honest{index}") for index in range(12)]
    records = [record(who, address=f"/ip4/9.{index}.9.1/tcp/4001") for index, who in enumerate(honest)]
    links.discovery.on_records(flood + records, NOW)
    assert {who.peer_id for who in honest} <= set(dialed(links))
