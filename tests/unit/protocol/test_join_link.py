"""Join links, complete and truncated."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink, is_link, parse_link, peers_of, reach_of

PEER = Identity(b"p" * 16).peer_id
RELAY = Identity(b"r" * 16).peer_id
DIRECT = f"/ip4/203.0.113.7/tcp/4001/p2p/{PEER}"
CIRCUIT = f"/dns4/relay.example.org/tcp/4001/p2p/{RELAY}/p2p-circuit/p2p/{PEER}"

names = st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
digests = st.binary(min_size=32, max_size=32).map(Digest)
addresses = st.lists(st.sampled_from([DIRECT, CIRCUIT, f"/ip6/2001:db8::1/tcp/1/p2p/{RELAY}"]), min_size=1, max_size=8)


@given(names, digests, addresses)
def test_round_trip(name: str, run: Digest, bootstrap: list[str]) -> None:
    link = JoinLink(name, run, tuple(bootstrap))
    assert parse_link(str(link)) == link
    assert parse_link(f"  {link}\n") == link


@pytest.mark.parametrize("address", [DIRECT, CIRCUIT])
def test_truncated_link_is_refused(address: str) -> None:
    text = str(JoinLink("run", Digest(bytes(range(32))), (address,)))
    relayed_peer = text.index("/p2p-circuit") if "/p2p-circuit" in text else -1
    for size in range(len(text)):
        if size == relayed_peer:
            assert parse_link(text[:size]).bootstrap == (address[: address.index("/p2p-circuit")],)
            continue  # the address of the relay itself is a complete address
        with pytest.raises(ConfigError) as caught:
            parse_link(text[:size])
        assert caught.value.remedy


@pytest.mark.parametrize("letter", ["0", "1", "8", "-", "é"])
def test_a_letter_that_no_digest_has_is_called_a_change(letter: str) -> None:
    text = str(JoinLink("run", Digest(bytes(range(32))), (DIRECT,)))
    place = text.index("@") + 5
    with pytest.raises(ConfigError, match="has a character that no digest has: it was changed"):
        parse_link(text[:place] + letter + text[place + 1 :])


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_link_is_called_empty(text: str) -> None:
    with pytest.raises(ConfigError, match="the join link is empty"):
        parse_link(text)


def test_truncation_in_a_later_address_is_refused() -> None:
    link = JoinLink("run", Digest(bytes(range(32))), (DIRECT, DIRECT))
    text = str(link)
    first = len(str(JoinLink(link.name, link.run, (DIRECT,))))
    for size in range(first + 2, len(text)):
        with pytest.raises(ConfigError):
            parse_link(text[:size])
    assert parse_link(text[:first]).bootstrap == (DIRECT,)


@given(st.text(max_size=200))
def test_any_text_is_a_link_or_an_error(text: str) -> None:
    for candidate in (text, "p2prl://" + text, f"p2prl://run@{'a' * 52}?{text}", f"p2prl://run@{text}?b={DIRECT}"):
        try:
            link = parse_link(candidate)
        except ConfigError:
            continue
        assert len(link.run) == 32
        assert link.bootstrap


def test_only_the_first_addresses_are_used() -> None:
    many = JoinLink("run", Digest(bytes(32)), (DIRECT,) * (limits.MAX_ADDRESSES + 3))
    assert len(parse_link(str(many)).bootstrap) == limits.MAX_ADDRESSES


@pytest.mark.parametrize(
    "where",
    ["/ip6/fe80::1%eth0", "/ip6/fe80::1%12", "/ip6/fe80::1", "/ip6zone/eth0/ip6/fe80::1", "/ip6/2600::1%wlan0"],
)
def test_an_address_with_a_zone_is_passed_over_and_a_link_of_such_alone_is_refused(where: str) -> None:
    """The zone is a name of an interface on the machine that wrote the link."""
    zoned = f"{where}/tcp/4001/p2p/{PEER}"
    assert reach_of(zoned) == "network"
    for order in ((zoned, DIRECT), (DIRECT, zoned)):
        assert parse_link(str(JoinLink("run", Digest(bytes(32)), order))).bootstrap == (DIRECT,)
    by_hand = str(JoinLink("run", Digest(bytes(32)), (DIRECT,))) + f"&b={zoned.replace('%12', '%2512')}"
    assert parse_link(by_hand).bootstrap == (DIRECT,)
    with pytest.raises(ConfigError, match="works on one local network alone") as caught:
        parse_link(str(JoinLink("run", Digest(bytes(32)), (zoned,))))
    assert "another address" in caught.value.remedy


def test_an_address_is_printable_and_no_longer_than_one_may_be() -> None:
    rest = f"/tcp/4001/p2p/{PEER}"
    longest = f"/dns4/{'a' * (limits.MAX_ADDRESS_CHARS - len('/dns4/' + rest))}{rest}"
    assert len(longest) == limits.MAX_ADDRESS_CHARS
    assert parse_link(str(JoinLink("run", Digest(bytes(32)), (longest,)))).bootstrap == (longest,)
    for wrong in (longest.replace("aa", "aaa", 1), DIRECT.replace("203.0.113.7", "a\x7fb")):
        with pytest.raises(ConfigError, match="complete multiaddr"):
            parse_link(str(JoinLink("run", Digest(bytes(32)), (wrong,))))


def test_zones_take_no_place_of_addresses_that_can_be_dialed() -> None:
    zoned = f"/ip6/fe80::1/tcp/4001/p2p/{PEER}"
    many = JoinLink("run", Digest(bytes(32)), (zoned,) * limits.MAX_ADDRESSES + (DIRECT,))
    assert parse_link(str(many)).bootstrap == (DIRECT,)


def test_foreign_parameters_are_refused() -> None:
    good = str(JoinLink("run", Digest(bytes(32)), (DIRECT,)))
    for bad in (
        good.replace("?b=", "?c="),
        good + "&x=1",
        good.replace("run@", "r/../n@"),
        good.replace("run@", "@"),
        good.replace("@" + "a", "@" + "1"),
        good.replace("p2prl://", "https://"),
        good.replace(PEER, PEER[:-1] + ("A" if PEER[-1] != "A" else "B")) + "%00",
        good.replace("/tcp/", "/tcp /"),
    ):
        with pytest.raises(ConfigError):
            parse_link(bad)


def test_a_published_link_names_the_learner_and_listed_peers_alone() -> None:
    relay = f"/ip6/2001:db8::1/tcp/1/p2p/{RELAY}"
    link = JoinLink("run", Digest(bytes(32)), (DIRECT, relay))
    circuits = replace(link, bootstrap=(DIRECT, CIRCUIT))
    assert link.published(PEER, ()).bootstrap == (DIRECT,)
    assert circuits.published(PEER, ()).bootstrap == (DIRECT,), "a circuit names its relay too"
    assert circuits.published(PEER, {RELAY}) == circuits
    assert link.published(RELAY, ()).bootstrap == (relay,)
    assert link.published(PEER, {RELAY}) == link
    assert list(map(set, map(peers_of, (DIRECT, CIRCUIT, "/ip4/1.2.3.4/tcp/1")))) == [{PEER}, {PEER, RELAY}, set()]


LOOPBACK, LOOPBACK6 = "/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1"
LAN, CARRIER, LAN6 = "/ip4/192.168.1.7/tcp/1", "/ip4/100.64.0.1/tcp/1", "/ip6/fd00::1/tcp/1"
PUBLIC, PUBLIC6, NAMED = "/ip4/8.8.8.8/tcp/1", "/ip6/2600::1/tcp/1", "/dns4/example.org/tcp/1"


@pytest.mark.parametrize(
    ("address", "reach"),
    [
        *((address, "machine") for address in (LOOPBACK, LOOPBACK6)),
        *((address, "network") for address in (LAN, CARRIER, LAN6)),
        *((address, "internet") for address in (PUBLIC, PUBLIC6, NAMED, f"{LAN}/p2p/{RELAY}/p2p-circuit")),
    ],
)
def test_the_reach_of_an_address(address: str, reach: str) -> None:
    assert reach_of(f"{address}/p2p/{PEER}") == reach


@pytest.mark.parametrize(
    ("learner", "peer", "is_named"),
    [
        (PUBLIC, PUBLIC6, True),
        (PUBLIC, LAN, False),
        (f"{PUBLIC}/p2p/{RELAY}/p2p-circuit", LAN, False),
        (PUBLIC, LOOPBACK, False),
        (NAMED, LAN6, False),
        (LAN, LAN, True),
        (LAN, PUBLIC, True),
        (LAN, LOOPBACK, False),
        (LOOPBACK, LOOPBACK, True),
        (LOOPBACK, LAN, True),
    ],
)
def test_an_address_that_readers_cannot_dial_is_published_of_the_learner_alone(
    learner: str, peer: str, is_named: bool
) -> None:
    """A private address beside an id tells strangers of somebody's home, and helps nobody outside of it."""
    own, other = f"{learner}/p2p/{PEER}", f"{peer}/p2p/{RELAY}"
    link = JoinLink("run", Digest(bytes(32)), (f"{LAN}/p2p/{PEER}", own, other))
    narrow = replace(link, bootstrap=(own, other))
    assert narrow.published(PEER, {RELAY}).bootstrap == ((own, other) if is_named else (own,))
    assert link.published(PEER, {RELAY}).bootstrap[:2] == link.bootstrap[:2], "the learner's own are its owner's choice"


@pytest.mark.parametrize(
    ("place", "cause"),
    [
        ("/ip4/999.1.1.1/tcp/1", "'999.1.1.1' is no IPv4 address"),
        ("/ip4/1.2.3/tcp/1", "'1.2.3' is no IPv4 address"),
        ("/ip4/::1/tcp/1", "'::1' is no IPv4 address"),
        ("/ip6/1.2.3.4/tcp/1", "'1.2.3.4' is no IPv6 address"),
        ("/ip6/2600:::1/tcp/1", "'2600:::1' is no IPv6 address"),
        ("/ip4/1.2.3.4/tcp/65536", "'65536' is no port from 1 to 65535"),
        ("/ip4/1.2.3.4/tcp/0", "'0' is no port from 1 to 65535"),
        ("/ip4/1.2.3.4/tcp/²", "'²' is no port from 1 to 65535"),
    ],
)
def test_a_refused_address_is_told_with_the_part_that_is_wrong(place: str, cause: str) -> None:
    text = str(JoinLink("run", Digest(bytes(32)), (f"{place}/p2p/{PEER}",)))
    with pytest.raises(ConfigError) as caught:
        parse_link(text)
    assert str(caught.value).startswith(f"the link's peer address '{place}")
    assert str(caught.value).endswith(f" is not usable: {cause}")


@pytest.mark.parametrize("address", ["/ip4/1", "/ip4/1.2.3.4/tcp/1", "ip4/1.2.3.4/tcp/1/p2p/x", DIRECT[:-3], "/ip4/9"])
def test_an_address_that_was_cut_off_is_called_incomplete(address: str) -> None:
    with pytest.raises(ConfigError, match="is not a complete multiaddr"):
        parse_link(str(JoinLink("run", Digest(bytes(32)), (address,))))


@pytest.mark.parametrize("before", ["", "'", '"', " \n", " '"])
def test_what_parses_as_a_link_is_taken_for_one(before: str) -> None:
    text = f"{before}{JoinLink('run', Digest(bytes(32)), (DIRECT,))}{before[::-1]}"
    assert is_link(text)
    assert parse_link(text).bootstrap == (DIRECT,)
    assert not is_link(f"{before}runs/my-run")


@pytest.mark.parametrize(
    ("before", "after"),
    [("<", ">"), ("\u201c", "\u201d"), ("\u2018", "\u2019"), ("`", "`"), ("\u00ab ", " \u00bb"), ('"<', '>"')],
)
def test_marks_that_messages_set_around_a_link_are_no_part_of_it(before: str, after: str) -> None:
    link = JoinLink("run", Digest(bytes(range(32))), (DIRECT,))
    assert is_link(f"{before}{link}{after}")
    assert parse_link(f"{before}{link}{after}") == link


def test_the_scheme_may_have_capitals() -> None:
    link = JoinLink("Run", Digest(bytes(range(32))), (DIRECT,))
    assert parse_link(str(link).replace("p2prl", "P2prl", 1)) == link
    assert is_link("P2PRL://Run@")


def test_who_waits_to_be_dialed_needs_a_link_without_peers() -> None:
    bare = JoinLink("run", Digest(bytes(32)), ())
    assert parse_link(str(bare), needs_peer=False) == bare
    with pytest.raises(ConfigError, match="names no peer"):
        parse_link(str(bare))
    with pytest.raises(ConfigError, match="was cut off"):
        parse_link(str(bare)[:-1], needs_peer=False)
