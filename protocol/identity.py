"""A peer's identity: one Ed25519 key that is its libp2p peer id, owns its directory record and signs its messages.

The key is derived from 16 bytes of entropy, so that it can be written down as twelve BIP-39 words and restored from
them. Every signature covers a versioned domain string (`protocol/envelope.py`), so a signature made for one purpose
cannot be used for another.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import NewType

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from mnemonic import Mnemonic

from p2prl.errors import IdentityError

PeerId = NewType("PeerId", str)
"""A libp2p peer id: base58btc of the identity multihash of the key's protobuf; 52 characters for Ed25519."""

ENTROPY_BYTES = 16
_WORDS = 12
PUBLIC_KEY_BYTES = 32

SIGNATURE_BYTES = 64
"""Length of an Ed25519 signature (RFC 8032, section 5.1.6)."""

_FIELD = 2**255 - 19
"""Of the curve's coordinates (RFC 8032, section 5.1)."""

_ORDER_EIGHT = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
_SMALL_ORDERS = frozenset((0, 1, _FIELD - 1, _ORDER_EIGHT, _FIELD - _ORDER_EIGHT))
"""y of the eight points whose order divides eight. One signature of such a key fits any bytes, and needs no secret."""

_SEED_DOMAIN = b"p2prl/identity/v1"
_ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# Identity multihash (0x00, 36 bytes) of protobuf PublicKey{type=Ed25519 (08 01), data=32 bytes (12 20 …)}.
_PEER_ID_PREFIX = bytes((0x00, 0x24, 0x08, 0x01, 0x12, 0x20))
_PEER_ID_CHARS = 52
_BASE58_INDEX = {character: value for value, character in enumerate(_ALPHABET)}


@dataclass(frozen=True)
class Identity:
    """A peer's secret. Build it with `generate` or `from_words`; its words and seed never leave the machine."""

    entropy: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.entropy) != ENTROPY_BYTES:
            raise IdentityError(
                f"an identity needs {ENTROPY_BYTES} bytes of entropy, got {len(self.entropy)}",
                remedy="Restore the key from its twelve words: p2prl key restore",
            )

    @classmethod
    def generate(cls, entropy: bytes) -> Identity:
        """Build an identity from 16 random bytes. The caller draws them (`os.urandom`): cores have no random source."""
        return cls(entropy)

    @classmethod
    def from_words(cls, words: str) -> Identity:
        """Restore an identity from twelve BIP-39 English words. Raises `IdentityError` if a word or the checksum is
        wrong."""
        normal = " ".join(words.lower().split())
        if (count := len(normal.split())) != _WORDS:
            raise IdentityError(f"a key is {_WORDS} words, not {count}", remedy="Type all of them, in the right order.")
        try:
            return cls(bytes(Mnemonic("english").to_entropy(normal)))
        except (ValueError, LookupError) as error:
            raise IdentityError(
                f"these twelve words are not a key: {error}",
                remedy="Check the spelling and the order of the words you wrote down.",
            ) from error

    @property
    def words(self) -> str:
        """Twelve words that restore this identity."""
        return Mnemonic("english").to_mnemonic(self.entropy)

    @property
    def secret_seed(self) -> bytes:
        """The 32-byte Ed25519 seed: HMAC-SHA-512 of the entropy under a versioned domain, first half."""
        return hmac.new(_SEED_DOMAIN, self.entropy, hashlib.sha512).digest()[:32]

    @cached_property
    def public_key(self) -> bytes:
        """The raw 32-byte public key."""
        return self._private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    @cached_property
    def peer_id(self) -> PeerId:
        return peer_id_of(self.public_key)

    def sign_raw(self, data: bytes) -> bytes:
        """Sign `data` as it is with Ed25519; 64 bytes. Domain separation is the caller's job."""
        return self._private.sign(data)

    @cached_property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.secret_seed)


def verify_raw(public_key: bytes, data: bytes, signature: bytes) -> bool:
    """Whether `signature` is the key's Ed25519 signature of `data`. Never raises on any bytes.

    A key that anybody can sign for, or that is another writing of a key, has no signatures.
    """
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    y = int.from_bytes(public_key, "little") % 2**255
    if y >= _FIELD or y in _SMALL_ORDERS:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, data)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=16_384)
def peer_id_of(public_key: bytes) -> PeerId:
    """The libp2p peer id of a raw 32-byte Ed25519 public key (libp2p peer-id specification, identity multihash)."""
    if len(public_key) != PUBLIC_KEY_BYTES:
        raise IdentityError(f"an Ed25519 public key has {PUBLIC_KEY_BYTES} bytes, got {len(public_key)}")
    raw = _PEER_ID_PREFIX + public_key
    number = int.from_bytes(raw, "big")
    digits: list[str] = []
    while number:
        number, remainder = divmod(number, 58)
        digits.append(_ALPHABET[remainder])
    leading_zeros = len(raw) - len(raw.lstrip(b"\0"))
    return PeerId("1" * leading_zeros + "".join(reversed(digits)))


def public_key_of(peer_id: PeerId) -> bytes:
    """The raw public key inside an Ed25519 peer id. Raises `IdentityError` for any other text."""
    number = 0
    try:
        for character in (
            peer_id if len(peer_id) == _PEER_ID_CHARS else ""
        ):  # no arithmetic on long text from a stranger
            number = number * 58 + _BASE58_INDEX[character]
        raw = number.to_bytes(len(_PEER_ID_PREFIX) + PUBLIC_KEY_BYTES, "big")
    except (KeyError, OverflowError):
        raw = b""
    if not raw.startswith(_PEER_ID_PREFIX) or peer_id_of(raw[len(_PEER_ID_PREFIX) :]) != peer_id:
        raise IdentityError(f"{peer_id[:60]!r} is not an Ed25519 peer id")
    return raw[len(_PEER_ID_PREFIX) :]
