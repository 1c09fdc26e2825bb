"""A join link holds the addresses others can dial, and its operator is warned of limited reach."""

from __future__ import annotations

import pytest

from p2prl.cli.commands.learn_link import link_addresses, reach_warning, shareable

HERE = "/ip4/127.0.0.1/tcp/1/p2p/x"
HERE6 = "/ip6/::1/tcp/1/p2p/x"
HOME = "/ip4/192.168.1.7/tcp/1/p2p/x"
PUBLIC = "/ip4/8.8.8.8/tcp/1/p2p/x"
RELAYED = "/ip4/10.0.0.1/tcp/1/p2p/r/p2p-circuit/p2p/x"
NAMED = "/dns4/example.org/tcp/1/p2p/x"
ZONED = "/ip6zone/eth0/ip6/fe80::1/tcp/1/p2p/x"
LINK_LOCAL = "/ip6/fe80::1/tcp/1/p2p/x"


@pytest.mark.parametrize(
    ("addresses", "shared", "words"),
    [
        ((HERE,), (HERE,), "this machine only"),
        ((HERE, HERE6), (HERE, HERE6), "this machine only"),
        ((HERE, HOME), (HOME,), "local network only"),
        ((HERE, HOME, HERE6, PUBLIC), (HOME, PUBLIC), ""),
        ((HERE, RELAYED), (RELAYED,), ""),
        ((NAMED,), (NAMED,), ""),
        ((ZONED, LINK_LOCAL, HERE, HOME), (HOME,), "local network only"),
        ((ZONED, HERE), (HERE,), "this machine only"),
        ((ZONED, LINK_LOCAL), (), "works nowhere"),
    ],
)
def test_shared_addresses_and_their_reach(addresses: tuple[str, ...], shared: tuple[str, ...], words: str) -> None:
    assert shareable(addresses) == shared
    warning = reach_warning(shared, "p2prl://n@d")
    assert words in warning
    assert ("p2prl seed 'p2prl://n@d' --listen" in warning) is (words == "local network only")
    assert bool(words) == bool(warning)


def test_a_relay_of_the_learner_is_named_only_if_it_is_a_listed_peer() -> None:
    listed = "/ip4/10.0.0.1/tcp/1/p2p/r"
    assert link_addresses((RELAYED, HOME), ()) == (HOME,)
    assert link_addresses((RELAYED, HOME), ("/ip4/9.9.9.9/tcp/1/p2p/y",)) == (HOME, "/ip4/9.9.9.9/tcp/1/p2p/y")
    assert link_addresses((RELAYED, HOME), (listed,)) == (RELAYED, HOME)
    assert link_addresses((RELAYED, HOME), (PUBLIC.replace("p/x", "p/r"),)) == (
        RELAYED,
        HOME,
        PUBLIC.replace("p/x", "p/r"),
    )


def test_private_addresses_of_peers_are_for_links_of_their_network_alone() -> None:
    peers = ("/ip4/192.168.1.9/tcp/1/p2p/y", "/ip4/7.7.7.7/tcp/1/p2p/z")
    assert link_addresses((HOME,), peers) == (HOME, *peers)
    assert link_addresses((HOME, PUBLIC), peers) == (PUBLIC, HOME, peers[1])
    assert link_addresses((HOME, NAMED), peers[:1]) == (NAMED, HOME), "a DNS name that outlives the address"
    assert link_addresses((ZONED, HOME), peers) == (HOME, *peers), "a zone is a name on this machine"


def test_a_link_names_the_learner_first_at_its_widest_reach_then_peers() -> None:
    peers = ("/ip4/9.9.9.9/tcp/1/p2p/y", "/ip4/7.7.7.7/tcp/1/p2p/z")
    assert link_addresses((HOME, PUBLIC, HOME, NAMED), peers) == (PUBLIC, NAMED, HOME, *peers)
    many = tuple(f"/ip4/192.168.1.{i}/tcp/1/p2p/x" for i in range(12))
    assert link_addresses((*many, PUBLIC), peers) == (PUBLIC, *many[:3], *peers)
    assert link_addresses((*many, PUBLIC), ()) == (PUBLIC, *many[:7])
