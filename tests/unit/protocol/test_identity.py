"""Keys, words and peer ids, against an independently built peer id and published vectors."""

from __future__ import annotations

import hashlib
import hmac

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import IdentityError
from p2prl.protocol.identity import Identity, PeerId, peer_id_of, public_key_of, verify_raw

ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


def base58(data: bytes) -> str:
    """Base58 by long division of digits, as the Bitcoin wiki describes it: no big integers."""
    digits: list[int] = []
    for byte in data:
        carry = byte
        for place in range(len(digits)):
            carry += digits[place] << 8
            digits[place] = carry % 58
            carry //= 58
        while carry:
            digits.append(carry % 58)
            carry //= 58
    zeros = next((i for i, byte in enumerate(data) if byte), len(data))
    return "1" * zeros + "".join(ALPHABET[d] for d in reversed(digits))


def test_peer_id_is_an_identity_multihash() -> None:
    # libp2p peer-id specification, test vectors: this Ed25519 key's PublicKey protobuf.
    protobuf = bytes.fromhex("080112201ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
    multihash = bytes((0x00, len(protobuf))) + protobuf
    assert peer_id_of(protobuf[4:]) == base58(multihash)


@given(st.binary(min_size=32, max_size=32))
def test_peer_id_round_trip(key: bytes) -> None:
    peer = peer_id_of(key)
    assert peer == base58(b"\x00\x24\x08\x01\x12\x20" + key)
    assert peer.startswith("12D3KooW")
    assert len(peer) == 52
    assert public_key_of(peer) == key


@given(st.binary(min_size=16, max_size=16))
def test_words_restore_the_key(entropy: bytes) -> None:
    identity = Identity(entropy)
    assert len(identity.words.split()) == 12
    spoken = "  ".join(identity.words.upper().split()) + "\n"
    assert Identity.from_words(spoken).public_key == identity.public_key


def test_bip39_vector_and_key_derivation() -> None:
    # The BIP-39 reference vector of all-zero entropy.
    zero = Identity(bytes(16))
    assert zero.words == "abandon " * 11 + "about"
    seed = hmac.new(b"p2prl/identity/v1", bytes(16), hashlib.sha512).digest()[:32]
    assert zero.public_key == Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def test_wrong_words_are_refused() -> None:
    good = Identity(bytes(range(16))).words.split()
    swapped = [*good[:-1], "zoo" if good[-1] != "zoo" else "abandon"]
    for words in (" ".join(swapped), " ".join(good[:-1]), "not a key", "", " ".join(good * 2)):
        with pytest.raises(IdentityError) as caught:
            Identity.from_words(words)
        assert caught.value.remedy


def test_secret_is_not_printed() -> None:
    identity = Identity(bytes(range(16)))
    shown = repr(identity) + str(identity)
    assert bytes(range(16)).hex() not in shown
    assert repr(bytes(range(16))) not in shown


@given(st.text(max_size=80))
def test_other_text_is_refused(text: str) -> None:
    try:
        key = public_key_of(PeerId(text))
    except IdentityError:
        return
    assert peer_id_of(key) == text


def test_long_text_is_refused_before_arithmetic() -> None:
    with pytest.raises(IdentityError):
        public_key_of(PeerId("z" * 10_000_000))


def test_rsa_peer_id_is_refused() -> None:
    with pytest.raises(IdentityError):
        public_key_of(PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"))


def test_verify_never_raises() -> None:
    identity = Identity(bytes(16))
    signature = identity.sign_raw(b"data")
    assert verify_raw(identity.public_key, b"data", signature)
    for key, data, sign in (
        (b"", b"data", signature),
        (identity.public_key, b"date", signature),
        (identity.public_key, b"data", signature[:-1]),
        (bytes(32), b"data", signature),
        (b"\xff" * 32, b"data", signature),
        (identity.public_key, b"data", bytes(64)),
    ):
        assert not verify_raw(key, data, sign)


def test_signature_is_not_malleable() -> None:
    # RFC 8032 §5.1.7: s ≥ L must be refused, or anybody could give a signed message a second set of bytes.
    identity = Identity(bytes(16))
    signature = identity.sign_raw(b"data")
    order = 2**252 + 27742317777372353535851937790883648493
    s = int.from_bytes(signature[32:], "little") + order
    assert not verify_raw(identity.public_key, b"data", signature[:32] + s.to_bytes(32, "little"))


def test_entropy_has_sixteen_bytes() -> None:
    for size in (0, 15, 17, 32):
        with pytest.raises(IdentityError):
            Identity(bytes(size))
