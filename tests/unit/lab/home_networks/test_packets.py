"""Packets are read, and rewritten with right checksums."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl_lab.home_networks.packets import SYN, TCP, UDP, read_packet, udp_packet
from tests.unit.lab.home_networks.packet_makers import endpoint, is_intact, packet, raw_packet

_PORTS = st.integers(0, 65_535)
_IPV4 = st.tuples(st.integers(0, 2**32 - 1).map(lambda n: ipaddress.IPv4Address(n).packed), _PORTS)
_IPV6 = st.tuples(st.integers(0, 2**128 - 1).map(lambda n: ipaddress.IPv6Address(n).packed), _PORTS)
_FOUR = st.one_of(st.tuples(_IPV4, _IPV4, _IPV4, _IPV4), st.tuples(_IPV6, _IPV6, _IPV6, _IPV6))


@given(_FOUR, st.binary(max_size=80), st.sampled_from((TCP, UDP)))
def test_a_rewritten_packet_is_the_packet_of_the_new_endpoints(four, payload, protocol):  # type: ignore[no-untyped-def]
    source, target, new_source, new_target = four
    changed = packet(source, target, payload, protocol=protocol)
    changed.set_source(new_source)
    changed.set_target(new_target)
    assert is_intact(bytes(changed.data))
    again = read_packet(bytes(changed.data))
    assert again is not None
    assert (again.source, again.target) == (new_source, new_target) == (changed.source, changed.target)
    assert bytes(again.data).endswith(payload)


@given(_FOUR)
def test_a_damaged_packet_stays_damaged(four):  # type: ignore[no-untyped-def]
    source, target, new_source, _ = four
    data = bytearray(raw_packet(source, target, b"payload!"))
    data[-1] ^= 1
    changed = read_packet(bytes(data))
    assert changed is not None
    changed.set_source(new_source)
    assert not is_intact(bytes(changed.data))


def test_fields_of_a_tcp_packet() -> None:
    found = packet(endpoint("192.168.1.10", 5000), endpoint("44.130.7.1", 80), b"hello", flags=SYN)
    assert (found.protocol, found.flags, found.payload_bytes) == (TCP, SYN, 5)
    assert found.source == (bytes((192, 168, 1, 10)), 5000)


def test_udp_without_a_checksum_keeps_none() -> None:
    data = udp_packet(endpoint("192.168.1.1", 5351), endpoint("192.168.1.10", 9), b"x")
    assert is_intact(data)
    found = read_packet(data)
    assert found is not None
    found.set_target(endpoint("10.0.0.1", 10))
    assert is_intact(bytes(found.data))
    assert found.data[26:28] == b"\0\0"


@pytest.mark.parametrize("cut", [0, 1, 19, 20, 39])
def test_short_packets_are_none(cut: int) -> None:
    assert read_packet(raw_packet(endpoint("1.1.1.1", 1), endpoint("2.2.2.2", 2))[:cut]) is None
    assert read_packet(raw_packet(endpoint("3000::1", 1), endpoint("3000::2", 2))[:cut]) is None


def test_fragments_and_other_protocols_are_none() -> None:
    data = bytearray(raw_packet(endpoint("1.1.1.1", 1), endpoint("2.2.2.2", 2)))
    data[7] = 1
    assert read_packet(bytes(data)) is None
    data[6:8] = b"\x40\0"  # do not fragment: no fragment
    assert read_packet(bytes(data)) is not None
    data[9] = 1  # ICMP
    assert read_packet(bytes(data)) is None
