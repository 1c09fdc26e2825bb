"""Subnets of peers by their multiaddrs."""

from __future__ import annotations

import pytest

from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.subnets import UNKNOWN, PeerSubnets, fullest, is_relayed, subnet_of


@pytest.mark.parametrize(
    ("address", "subnet"),
    [
        ("/ip4/192.0.2.77/tcp/4001", "192.0.2.0/24"),
        ("/ip6/2001:db8:1:2::5/tcp/4001", "2001:db8:1::/48"),
        ("/ip6/::ffff:192.0.2.9/tcp/1", "192.0.2.0/24"),
        ("/ip4/192.0.2.1/tcp/4001/p2p/RELAY/p2p-circuit/p2p/PEER", "relay/RELAY"),
        ("/ip4/192.0.2.1/tcp/4001/p2p-circuit", "192.0.2.0/24"),
        ("/dns4/example.org/tcp/4001", UNKNOWN),
        ("/ip4/not an address/tcp/1", UNKNOWN),
        ("/ip4", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_the_subnet_of_an_address(address: str, subnet: str) -> None:
    assert subnet_of(address) == subnet
    assert is_relayed(subnet_of(address)) is subnet.startswith("relay/")


def test_the_fullest_subnets_are_all_named() -> None:
    a, b, c = (subnet_of(f"/ip4/192.0.{i}.1") for i in range(3))
    assert fullest([a, b, a, c, b]) == {a, b}
    assert fullest([]) == set()


def test_the_newest_report_holds_and_old_ones_are_forgotten() -> None:
    table = PeerSubnets(3)
    peers = [PeerId(f"p{index}") for index in range(4)]
    for peer in peers[:3]:
        table.note(peer, "/ip4/192.0.2.1")
    table.note(peers[0], "/ip4/192.0.3.1")
    table.note(peers[3], "/ip4/192.0.4.1")
    assert len(table) == 3
    assert [table.of(peer) for peer in peers] == ["192.0.3.0/24", UNKNOWN, "192.0.2.0/24", "192.0.4.0/24"]
