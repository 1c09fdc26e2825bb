"""Wildcard listen addresses as addresses of this machine."""

from __future__ import annotations

import socket

import pytest

from p2prl.net.listen_addresses import DEFAULT_LISTEN, has_ipv6, usable_listen, with_one_port
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


def test_without_ipv6_its_wildcard_is_left_out() -> None:
    four, six = DEFAULT_LISTEN
    assert usable_listen(DEFAULT_LISTEN, ipv6=True) == (four, six)
    assert usable_listen(DEFAULT_LISTEN, ipv6=False) == (four,)
    assert usable_listen((six,), ipv6=False) == (six,)  # asked for alone: the daemon says why not
    assert usable_listen(("/ip6/2001:db8::1/tcp/1", four), ipv6=False) == ("/ip6/2001:db8::1/tcp/1", four)
    assert usable_listen((), ipv6=False) == ()
    assert usable_listen(DEFAULT_LISTEN) == (DEFAULT_LISTEN if has_ipv6() else (four,))


def test_a_machine_without_ipv6_sockets_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError("Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", refuse)
    assert not has_ipv6()


def test_one_port_for_both_families() -> None:
    four, six = with_one_port(DEFAULT_LISTEN)
    port = four.removeprefix("/ip4/0.0.0.0/tcp/")
    assert port.isdigit()
    assert int(port) > 0
    assert six == f"/ip6/::/tcp/{port}"
    fixed = ("/ip4/0.0.0.0/tcp/0", "/ip4/127.0.0.1/tcp/4001")
    assert with_one_port(fixed) == fixed  # one open port: the system chooses it while listening
    assert with_one_port((*DEFAULT_LISTEN, fixed[1]))[2] == fixed[1]


def test_public_interfaces() -> None:
    assert any_public(["127.0.0.1", "44.130.7.1"])
    assert not any_public(["127.0.0.1", "192.168.1.10", "10.0.0.1", "100.64.0.2", "169.254.1.1"])
    assert not any_public(["2606:4700::1", "fe80::1%eth0", "02:00:00:00:00:01", ""])
    assert not any_public([])
