"""Wildcard listen addresses as addresses of this machine."""

from __future__ import annotations

from p2prl.net.transports.interface_addresses import any_public, expand_wildcard
from p2prl.net.transports.multiaddrs import to_bytes


def test_a_wildcard_becomes_one_address_for_each_interface() -> None:
    found = expand_wildcard("/ip4/0.0.0.0/tcp/4001")
    assert "/ip4/127.0.0.1/tcp/4001" in found
    assert all(to_bytes(address) for address in found)
    assert all("0.0.0.0" not in address and address.endswith("/tcp/4001") for address in found)


def test_ipv6_link_local_addresses_are_left_out() -> None:
    assert not any(address.startswith("/ip6/fe80") for address in expand_wildcard("/ip6/::/tcp/1"))


def test_another_address_stays() -> None:
    for address in ("/ip4/192.0.2.7/tcp/1", "/dns4/a.example/tcp/1", "/ip6/::1/tcp/1"):
        assert expand_wildcard(address) == (address,)


def test_public_interfaces() -> None:
    assert any_public(["127.0.0.1", "44.130.7.1"])
    assert not any_public(["127.0.0.1", "192.168.1.10", "10.0.0.1", "100.64.0.2", "169.254.1.1"])
    assert not any_public(["2606:4700::1", "fe80::1%eth0", "02:00:00:00:00:01", ""])
    assert not any_public([])
