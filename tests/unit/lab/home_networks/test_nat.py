"""Routers map and filter as RFC 4787 and RFC 5382 name it."""

from __future__ import annotations

import random

import pytest

from p2prl_lab.home_networks.nat import Dependence, Firewall, Nat, NatBehavior, passes
from p2prl_lab.home_networks.packets import ACK, FIN, SYN, TCP, UDP, Endpoint
from tests.unit.lab.home_networks.packet_makers import endpoint, packet

INSIDE = endpoint("192.168.1.10", 5000)
OUTSIDE = endpoint("44.130.7.1", 0)[0]
PEER, SAME_HOST, OTHER = endpoint("44.140.7.1", 1), endpoint("44.140.7.1", 2), endpoint("44.150.7.1", 1)


def nat(**behavior: object) -> Nat:
    return Nat(NatBehavior(**behavior), OUTSIDE, random.Random(7))  # type: ignore[arg-type]


def send(router: Nat, target: Endpoint, *, now: float = 0.0, source: Endpoint = INSIDE, flags: int = ACK) -> Endpoint:
    """Send from inside; returns the sender that the outside sees."""
    leaving = packet(source, target, flags=flags)
    assert router.outbound(leaving, now)
    return leaving.source


def lets_in(router: Nat, source: Endpoint, target: Endpoint, *, now: float = 0.0, protocol: int = TCP) -> bool:
    arriving = packet(source, target, protocol=protocol)
    passed = router.inbound(arriving, now)
    assert not passed or arriving.target == INSIDE
    return passed


def test_an_answer_comes_in_and_a_stranger_does_not() -> None:
    router = nat()
    seen = send(router, PEER)
    assert seen == (OUTSIDE, 5000)
    assert lets_in(router, PEER, seen)
    assert not lets_in(router, OTHER, seen)
    assert not lets_in(router, PEER, (OUTSIDE, 5001))
    assert not lets_in(router, PEER, seen, protocol=UDP)


@pytest.mark.parametrize(
    ("filtering", "same_host", "other"),
    [
        (Dependence.ENDPOINT, True, True),
        (Dependence.ADDRESS, True, False),
        (Dependence.ADDRESS_AND_PORT, False, False),
    ],
)
def test_filtering(filtering: Dependence, same_host: bool, other: bool) -> None:
    router = nat(filtering=filtering)
    seen = send(router, PEER)
    assert lets_in(router, PEER, seen)
    assert lets_in(router, SAME_HOST, seen) is same_host
    assert lets_in(router, OTHER, seen) is other


@pytest.mark.parametrize(
    ("mapping", "same_to_host", "same_to_other"),
    [
        (Dependence.ENDPOINT, True, True),
        (Dependence.ADDRESS, True, False),
        (Dependence.ADDRESS_AND_PORT, False, False),
    ],
)
def test_mapping(mapping: Dependence, same_to_host: bool, same_to_other: bool) -> None:
    router = nat(mapping=mapping, preserves_ports=False)
    first = send(router, PEER)
    assert send(router, PEER) == first
    assert (send(router, SAME_HOST) == first) is same_to_host
    assert (send(router, OTHER) == first) is same_to_other


def test_a_taken_port_is_not_given_twice() -> None:
    router = nat()
    other = endpoint("192.168.1.11", INSIDE[1])
    first, second = send(router, PEER), send(router, PEER, source=other)
    assert first[1] == INSIDE[1] != second[1]
    arriving = packet(PEER, second)
    assert router.inbound(arriving, 0.0)
    assert arriving.target == other


def test_two_homes_meet_when_both_dial() -> None:
    mine, theirs = nat(preserves_ports=False), Nat(NatBehavior(), PEER[0], random.Random(1))
    here = send(mine, OTHER)  # how the other home learns the port
    there = endpoint("192.168.1.10", 6000)
    knock = packet(there, here, flags=SYN)
    assert theirs.outbound(knock, 0.0)
    assert not mine.inbound(knock, 0.0)
    assert send(mine, knock.source) == here
    assert lets_in(mine, knock.source, here)


def test_idle_mappings_end_by_state() -> None:
    router = nat(tcp_open_s=240.0, tcp_idle_s=7_440.0)
    opening = send(router, PEER, flags=SYN)
    assert not lets_in(router, PEER, opening, now=241.0)
    opening = send(router, PEER, now=300.0, flags=SYN)
    send(router, PEER, now=301.0, flags=ACK)
    assert lets_in(router, PEER, opening, now=7_000.0)
    send(router, PEER, now=7_000.0, flags=FIN)
    assert not lets_in(router, PEER, opening, now=7_300.0)


def test_udp_mappings_end_after_two_minutes() -> None:
    router = nat()
    leaving = packet(INSIDE, PEER, protocol=UDP)
    assert router.outbound(leaving, 0.0)
    assert lets_in(router, PEER, leaving.source, now=120.0, protocol=UDP)
    assert not lets_in(router, PEER, leaving.source, now=240.1, protocol=UDP)


def test_an_asked_port_is_open_to_everybody_and_outlives_idleness() -> None:
    router = nat()
    port = router.open_port(TCP, INSIDE, 4001, 0.0)
    assert port == 4001 == router.open_port(TCP, INSIDE, 4002, 0.0)
    assert lets_in(router, OTHER, (OUTSIDE, port), now=1e6)
    assert send(router, PEER, now=1e6) == (OUTSIDE, port)  # and what it sends comes from there


def test_a_connection_from_before_a_port_was_opened_keeps_its_own() -> None:
    router = nat()
    seen = send(router, PEER)
    port = router.open_port(TCP, INSIDE, 4001, 1.0)
    assert send(router, PEER, now=2.0) == seen != (OUTSIDE, port)
    assert lets_in(router, PEER, seen, now=3.0)
    assert send(router, OTHER, now=4.0) == (OUTSIDE, port)
    router.move(OTHER[0])
    assert send(router, PEER, now=5.0) == (OTHER[0], INSIDE[1])


def test_a_move_ends_every_mapping() -> None:
    router = nat()
    seen = send(router, PEER)
    router.move(OTHER[0])
    assert not lets_in(router, PEER, seen)
    assert not lets_in(router, PEER, (OTHER[0], seen[1]))
    assert send(router, PEER)[0] == OTHER[0]


def test_hairpins_are_dropped() -> None:
    assert not nat().outbound(packet(INSIDE, (OUTSIDE, 80)), 0.0)


def test_a_firewall_lets_answers_in_while_they_are_recent() -> None:
    wall = Firewall(idle_s=60.0)
    mine, peer, other = endpoint("3000::1", 1), endpoint("3000::2", 2), endpoint("3000::2", 3)
    assert not wall.inbound(packet(peer, mine), 0.0)
    assert wall.outbound(packet(mine, peer), 0.0)
    assert wall.inbound(packet(peer, mine), 60.0)
    assert not wall.inbound(packet(other, mine), 60.0)
    assert wall.inbound(packet(peer, mine), 119.0)  # the answer counted as use
    assert not wall.inbound(packet(peer, mine), 180.1)


def test_nothing_passes_a_filter_without_remotes() -> None:
    assert not any(passes(filtering, PEER, {}) for filtering in Dependence)
