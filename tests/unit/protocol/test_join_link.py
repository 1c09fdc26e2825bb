"""Join links, complete and truncated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink, parse_link, peers_of

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


def test_a_link_that_names_some_peers_alone() -> None:
    relay = f"/ip6/2001:db8::1/tcp/1/p2p/{RELAY}"
    link = JoinLink("run", Digest(bytes(32)), (DIRECT, CIRCUIT, relay))
    assert link.naming({PEER}).bootstrap == (DIRECT,), "a circuit names its relay too"
    assert link.naming({RELAY}).bootstrap == (relay,)
    assert link.naming({PEER, RELAY}) == link
    assert link.naming(()).bootstrap == ()
    assert list(map(set, map(peers_of, (DIRECT, CIRCUIT, "/ip4/1.2.3.4/tcp/1")))) == [{PEER}, {PEER, RELAY}, set()]
