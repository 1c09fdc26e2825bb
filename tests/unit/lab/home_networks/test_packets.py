"""Packets are read as they were made."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl_lab.home_networks.packets import TCP, UDP, read_packet
from tests.unit.lab.home_networks.packet_makers import endpoint, raw_packet

_PORTS = st.integers(0, 65_535)
_IPV4 = st.tuples(st.integers(0, 2**32 - 1).map(lambda n: ipaddress.IPv4Address(n).packed), _PORTS)
_IPV6 = st.tuples(st.integers(0, 2**128 - 1).map(lambda n: ipaddress.IPv6Address(n).packed), _PORTS)


@given(st.one_of(st.tuples(_IPV4, _IPV4), st.tuples(_IPV6, _IPV6)), st.binary(max_size=80), st.sampled_from((TCP, UDP)))
def test_fields_of_a_packet(ends, payload, protocol):  # type: ignore[no-untyped-def]
    source, target = ends
    raw = raw_packet(source, target, payload, protocol=protocol)
    found = read_packet(raw)
    assert found is not None
    assert (found.source, found.target, found.protocol) == (*ends, protocol)
    assert (found.payload_bytes, found.data) == (len(payload), raw)


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
