"""Answers from the local network: whose are taken, how many, and where they may lead."""

from __future__ import annotations

import ipaddress

import pytest

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.sim.machines import identity_of
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.swarm.peers.nearby_peers import MAX_HOSTS, MAX_NEARBY, NearbyPeers, announcement, hosts_and_port, name_of

RUN, OTHER_RUN = Digest(bytes(32)), Digest(bytes([1]) * 32)
ME, LEARNER = identity_of("me").peer_id, identity_of("learner").peer_id
HOME = DialRules(networks=(ipaddress.ip_network("192.168.1.0/24"),))
AT_HOME = f"/ip4/192.168.1.7/tcp/4001/p2p/{LEARNER}"


def test_a_peer_of_the_run_is_found_where_it_says() -> None:
    nearby = NearbyPeers(RUN, ME)
    assert nearby.note(announcement(RUN, LEARNER), ["192.168.1.7"], 4001)
    assert nearby.addresses(HOME) == [(LEARNER, AT_HOME)]


@pytest.mark.parametrize(
    ("properties", "hosts", "port"),
    [
        (announcement(OTHER_RUN, LEARNER), ["192.168.1.7"], 4001),
        (announcement(RUN, ME), ["192.168.1.7"], 4001),
        (announcement(RUN, PeerId("nobody")), ["192.168.1.7"], 4001),
        (announcement(RUN, LEARNER) | {b"peer": b"\xff" * 50}, ["192.168.1.7"], 4001),
        (announcement(RUN, LEARNER) | {b"peer": b"1" * 10_000}, ["192.168.1.7"], 4001),
        ({b"run": None, b"peer": None}, ["192.168.1.7"], 4001),
        ({}, ["192.168.1.7"], 4001),
        (announcement(RUN, LEARNER), [], 4001),
        (announcement(RUN, LEARNER), ["a.example"], 4001),
        (announcement(RUN, LEARNER), ["192.168.1.7"], 0),
        (announcement(RUN, LEARNER), ["192.168.1.7"], 65_536),
    ],
)
def test_what_is_no_peer_of_the_run_is_ignored(
    properties: dict[bytes, bytes | None], hosts: list[str], port: int
) -> None:
    nearby = NearbyPeers(RUN, ME)
    assert not nearby.note(properties, hosts, port)
    assert nearby.addresses(HOME) == []


def test_an_answer_leads_only_where_a_stranger_may_lead() -> None:
    """Anybody on the network may answer: not to this machine itself, nor into another private network."""
    nearby = NearbyPeers(RUN, ME)
    nearby.note(announcement(RUN, LEARNER), ["127.0.0.1", "10.0.0.1", "192.168.1.7", "169.254.169.254"], 4001)
    assert nearby.addresses(HOME) == [(LEARNER, AT_HOME)]


def test_a_peer_is_known_at_its_newest_addresses_and_at_a_few_of_them() -> None:
    nearby = NearbyPeers(RUN, ME)
    nearby.note(announcement(RUN, LEARNER), ["192.168.1.9"], 4001)
    nearby.note(announcement(RUN, LEARNER), ["192.168.1.7"], 4001)
    assert nearby.addresses(HOME) == [(LEARNER, AT_HOME)]
    nearby.note(announcement(RUN, LEARNER), [f"192.168.1.{host}" for host in range(1, 100)], 4001)
    assert len(nearby.addresses(HOME)) <= MAX_HOSTS


def test_of_many_answers_the_newest_are_kept() -> None:
    nearby = NearbyPeers(RUN, ME)
    for number in range(1, 101):
        nearby.note(announcement(RUN, identity_of(f"p{number}").peer_id), [f"192.168.1.{number}"], 4001)
    found = [peer for peer, _ in nearby.addresses(HOME)]
    assert found == [identity_of(f"p{number}").peer_id for number in range(100, 100 - MAX_NEARBY, -1)]


def test_circuits_and_second_ports_are_not_announced() -> None:
    addresses = (
        f"/ip4/192.168.1.7/tcp/4001/p2p/{ME}",
        f"/ip6/fd00::7/tcp/4001/p2p/{ME}",
        f"/ip4/8.8.8.8/tcp/9/p2p/{ME}",
        f"/ip4/44.1.1.1/tcp/4001/p2p/{LEARNER}/p2p-circuit/p2p/{ME}",
    )
    assert hosts_and_port(addresses) == (["192.168.1.7", "fd00::7"], 4001)
    assert hosts_and_port(addresses[3:]) == ([], 0)


def test_an_announcement_says_nothing_of_the_machine() -> None:
    said = b" ".join((name_of(ME).encode(), *announcement(RUN, ME).values()))
    assert said.decode() == f"{ME[-16:]}._p2prl._tcp.local. {RUN.hex()} {ME}"
