"""Multiaddr codec (multiformats/multiaddr) between text and bytes, for the protocols peers of a swarm use. Pure.

Written here because hivemind's codec encodes `/p2p/<id>` as a CID where the daemon expects the multihash, so relay
addresses encoded by it cannot be dialed. Peer ids are Ed25519 only, as everywhere in p2prl.
"""

from __future__ import annotations

import ipaddress
from typing import Literal

from p2prl.errors import ConfigError, IdentityError
from p2prl.protocol import limits
from p2prl.protocol.identity import PUBLIC_KEY_BYTES, PeerId, peer_id_of, public_key_of

ValueKind = Literal["none", "ip4", "ip6", "port", "text", "peer"]

# Code and argument of each protocol; the codes are from the multiformats table.
_PROTOCOLS: dict[str, tuple[int, ValueKind]] = {
    "ip4": (4, "ip4"),
    "tcp": (6, "port"),
    "ip6": (41, "ip6"),
    "ip6zone": (42, "text"),
    "dns": (53, "text"),
    "dns4": (54, "text"),
    "dns6": (55, "text"),
    "udp": (273, "port"),
    "p2p-circuit": (290, "none"),
    "p2p": (421, "peer"),
    "quic": (460, "none"),
    "quic-v1": (461, "none"),
    "ws": (477, "none"),
    "wss": (478, "none"),
}
_BY_CODE = {code: (name, kind) for name, (code, kind) in _PROTOCOLS.items()}

# Identity multihash of the protobuf of an Ed25519 public key (libp2p peer-id specification).
_MULTIHASH_PREFIX = bytes((0x00, 0x24, 0x08, 0x01, 0x12, 0x20))
_MAX_ENCODED_BYTES = 512


def to_bytes(address: str) -> bytes:
    """The binary multiaddr of `address`. Raises `ConfigError` naming the part that is wrong."""
    if not address.startswith("/") or len(address) > limits.MAX_ADDRESS_CHARS:
        raise _bad(address, "an address starts with / and is short")
    parts = address[1:].split("/")
    out = bytearray()
    while parts:
        name = parts.pop(0)
        if name not in _PROTOCOLS:
            raise _bad(address, f"unknown part {name[:40]!r}")
        code, kind = _PROTOCOLS[name]
        out += _varint(code)
        if kind == "none":
            continue
        if not parts or not parts[0]:
            raise _bad(address, f"/{name} needs a value")
        try:
            out += _encode(kind, parts.pop(0))
        except (ValueError, IdentityError) as error:
            raise _bad(address, f"/{name}: {error}") from error
    return bytes(out)


def from_bytes(data: bytes) -> str | None:
    """The text of a binary multiaddr, or None for one with a part that is not in the table above."""
    if len(data) > _MAX_ENCODED_BYTES:
        return None
    text, rest = "", data
    while rest:
        code, rest = _take_varint(rest)
        if code not in _BY_CODE:
            return None
        name, kind = _BY_CODE[code]
        text += f"/{name}"
        if kind == "none":
            continue
        value, rest = _decode(kind, rest)
        if value is None:
            return None
        text += f"/{value}"
    return text or None


def split_peer(address: str) -> tuple[str, PeerId]:
    """Split an address and the peer id at its end: ("/ip4/…/tcp/…", id). Raises `ConfigError` when there is none."""
    to_bytes(address)
    where, marker, peer = address.rpartition("/p2p/")
    if not marker or "/" in peer:
        raise _bad(address, "it must end in /p2p/<peer id>")
    return where, PeerId(peer)


def multihash_of(peer: PeerId) -> bytes:
    """The binary form of a peer id. Raises `IdentityError` for anything but an Ed25519 peer id."""
    return _MULTIHASH_PREFIX + public_key_of(peer)


def peer_of_multihash(data: bytes) -> PeerId | None:
    """The peer whose id has these bytes, or None when its key is not Ed25519."""
    if len(data) != len(_MULTIHASH_PREFIX) + PUBLIC_KEY_BYTES or not data.startswith(_MULTIHASH_PREFIX):
        return None
    return peer_id_of(data[len(_MULTIHASH_PREFIX) :])


def _bad(address: str, why: str) -> ConfigError:
    return ConfigError(
        f"{address[: limits.MAX_ADDRESS_CHARS]!r} is not an address: {why}",
        remedy="Listen on /ip4/0.0.0.0/tcp/4001, for example; a peer's address looks like "
        "/ip4/203.0.113.7/tcp/4001/p2p/12D3KooW…",
    )


def _encode(kind: ValueKind, value: str) -> bytes:
    if kind == "ip4":
        return ipaddress.IPv4Address(value).packed
    if kind == "ip6":
        if "%" in value:  # `packed` would drop it
            raise ValueError(f"{value[:60]!r} has a zone, which is written before it: /ip6zone/NAME/ip6/…")
        return ipaddress.IPv6Address(value).packed
    if kind == "port":
        if not (value.isascii() and value.isdigit() and int(value) < 1 << 16):
            raise ValueError(f"{value[:20]!r} is not a port")
        return int(value).to_bytes(2, "big")
    data = multihash_of(PeerId(value)) if kind == "peer" else value.encode()
    return _varint(len(data)) + data


def _decode(kind: ValueKind, data: bytes) -> tuple[str | None, bytes]:
    if kind == "ip4":
        return (str(ipaddress.IPv4Address(data[:4])) if len(data) >= 4 else None), data[4:]
    if kind == "ip6":
        return (str(ipaddress.IPv6Address(data[:16])) if len(data) >= 16 else None), data[16:]
    if kind == "port":
        return (str(int.from_bytes(data[:2], "big")) if len(data) >= 2 else None), data[2:]
    size, rest = _take_varint(data)
    value = rest[:size]
    if size <= 0 or len(value) < size:
        return None, b""
    if kind == "peer":
        return peer_of_multihash(value), rest[size:]
    try:
        name = value.decode("utf-8")
    except UnicodeDecodeError:
        return None, rest[size:]
    return (None if "/" in name else name), rest[size:]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _take_varint(data: bytes) -> tuple[int, bytes]:
    """The first varint and the rest; (-1, b"") when there is none of at most three bytes."""
    number = 0
    for place, byte in enumerate(data[:3]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number, data[place + 1 :]
    return -1, b""
