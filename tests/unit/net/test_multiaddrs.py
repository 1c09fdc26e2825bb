"""Multiaddrs against vectors of the multiformats specification and against hivemind's own codec where it is right."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.net.transports import multiaddrs
from p2prl.protocol.identity import Identity, PeerId

PEER = Identity.generate(bytes(16)).peer_id
RELAY = Identity.generate(b"\x01" * 16).peer_id


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        # Code tables: https://github.com/multiformats/multiaddr (protocols.csv); hexadecimal worked out by hand.
        ("/ip4/127.0.0.1/tcp/4001", "04 7f000001 06 0fa1"),
        ("/ip4/1.2.3.4/udp/80/quic-v1", "04 01020304 9102 0050 cd03"),
        ("/ip6/::1/tcp/1", "29 00000000000000000000000000000001 06 0001"),
        ("/dns4/a.example/tcp/443/wss", "36 09 612e6578616d706c65 06 01bb de03"),
        ("/p2p-circuit", "a202"),
        ("/ip6zone/eth0/ip6/fe80::1", "2a 04 65746830 29 fe800000000000000000000000000001"),
    ],
)
def test_known_vectors(text: str, encoded: str) -> None:
    raw = bytes.fromhex(encoded.replace(" ", ""))
    assert multiaddrs.to_bytes(text) == raw
    assert multiaddrs.from_bytes(raw) == text


def test_a_peer_is_encoded_as_its_multihash_for_relay_addresses() -> None:
    text = f"/ip4/10.0.0.1/tcp/9/p2p/{RELAY}/p2p-circuit"
    raw = multiaddrs.to_bytes(text)
    # code 421, length 38, identity multihash of 36 bytes of protobuf
    assert raw[8:].startswith(bytes((0xA5, 0x03, 38, 0x00, 36, 0x08, 0x01, 0x12, 32)))
    assert multiaddrs.from_bytes(raw) == text
    assert multiaddrs.split_peer(f"{text}/p2p/{PEER}") == (text, PEER)


ports = st.integers(0, 65535)
hosts = st.one_of(
    st.ip_addresses(v=4).map(lambda a: f"/ip4/{a}"),
    st.ip_addresses(v=6).map(lambda a: f"/ip6/{a}"),
    st.from_regex(r"[a-z0-9-]{1,20}\.example", fullmatch=True).map(lambda name: f"/dns/{name}"),
)


@given(hosts, ports, st.sampled_from(["", "/ws", f"/p2p/{RELAY}/p2p-circuit"]))
def test_round_trip(host: str, port: int, tail: str) -> None:
    text = f"{host}/tcp/{port}{tail}"
    assert multiaddrs.from_bytes(multiaddrs.to_bytes(text)) == text


@given(st.binary(max_size=80))
def test_any_bytes_give_an_address_that_encodes_again_or_none(data: bytes) -> None:
    text = multiaddrs.from_bytes(data)
    if text is not None:
        assert multiaddrs.from_bytes(multiaddrs.to_bytes(text)) == text


@given(st.text(max_size=60) | st.from_regex(r"/(ip4|tcp|p2p|dns|x)/[^/]{0,5}(/(tcp|p2p)/?.{0,6})?", fullmatch=True))
def test_any_text_is_encoded_or_refused_with_config_error(text: str) -> None:
    encoded = None
    with contextlib.suppress(ConfigError):
        encoded = multiaddrs.to_bytes(text)
    assert encoded is None or multiaddrs.from_bytes(encoded) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ip4/1.2.3.4",
        "/ip4/1.2.3",
        "/ip4/1.2.3.4/tcp/65536",
        "/tcp",
        "/ip4/1.2.3.4/tcp/1/onion/x",
        "/p2p/QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N",
        "/ip4/1.2.3.4/tcp/" + "1" * 300,
    ],
)
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        multiaddrs.to_bytes(text)


def test_a_zone_that_would_be_lost_is_refused_with_how_it_is_written() -> None:
    with pytest.raises(ConfigError, match="'fe80::1%eth0' has a zone, which is written before it: /ip6zone/NAME/ip6/"):
        multiaddrs.to_bytes("/ip6/fe80::1%eth0/tcp/4001")


def test_an_address_without_a_peer_cannot_be_dialed() -> None:
    for text in ("/ip4/1.2.3.4/tcp/1", f"/ip4/1.2.3.4/tcp/1/p2p/{PEER}/p2p-circuit"):
        with pytest.raises(ConfigError):
            multiaddrs.split_peer(text)


def test_multihash_is_the_inverse_of_the_peer_id() -> None:
    assert multiaddrs.peer_of_multihash(multiaddrs.multihash_of(PEER)) == PEER
    assert multiaddrs.peer_of_multihash(b"\x12\x20" + bytes(32)) is None  # an RSA peer's hash
    assert multiaddrs.peer_of_multihash(b"") is None
    assert isinstance(PEER, str)
    assert PeerId(PEER).startswith("12D3KooW")
