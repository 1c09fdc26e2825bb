"""Join links: the magnet-style address of a run, which carries its root of trust.

    p2prl://NAME@DIGEST?b=MULTIADDR&b=MULTIADDR

DIGEST is the run manifest's envelope digest in unpadded lower-case base32 (52 characters). The
peers at the bootstrap addresses can at worst stall a newcomer; they cannot substitute another run, learner or weights.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, quote

from p2prl.errors import ConfigError, IdentityError
from p2prl.plain_text import counted
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES, Digest
from p2prl.protocol.identity import PeerId, public_key_of

SCHEME = "p2prl://"
_DIGEST_CHARS = 52
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MULTIADDR = re.compile(r"(/[a-z0-9-]+/[^/\s]+)+/p2p/(\w+)(/p2p-circuit/p2p/(\w+))?", re.ASCII)
_MOST_PORT = 65_535
_PEER = re.compile(r"/p2p/(\w+)", re.ASCII)
_REMEDY = "Copy the whole link again; it looks like p2prl://NAME@52-CHARACTERS?b=/ip4/…/tcp/…/p2p/…"


@dataclass(frozen=True, slots=True)
class JoinLink:
    """A parsed link: the run's name (for people), its manifest's digest (for trust) and peers to start from."""

    name: str
    run: Digest
    bootstrap: tuple[str, ...]

    def naming(self, peers: Collection[PeerId]) -> JoinLink:
        """The link with those addresses alone that name nobody but these peers, as a relay or as the one behind it."""
        return replace(self, bootstrap=tuple(each for each in self.bootstrap if peers_of(each) <= set(peers)))

    def __str__(self) -> str:
        text = base64.b32encode(self.run).decode().rstrip("=").lower()
        query = "&".join(f"b={quote(address, safe='/:')}" for address in self.bootstrap)
        return f"{SCHEME}{self.name}@{text}" + (f"?{query}" if query else "")


def parse_link(text: str) -> JoinLink:
    """Parse a join link. Raise a `ConfigError` that names the wrong part and the remedy."""
    text = text.strip().strip("'\"").replace("&amp;", "&")  # quotation marks of a message, the source of a page
    if not text:
        raise ConfigError("the join link is empty", remedy=_REMEDY)
    if not text.startswith(SCHEME):
        raise ConfigError(f"a join link starts with {SCHEME}, this one with {text[:12]!r}", remedy=_REMEDY)
    head, _, query = text[len(SCHEME) :].partition("?")
    name, at, digest_text = head.partition("@")
    if not at:
        raise ConfigError("the link has no @: it was cut off", remedy=_REMEDY)
    if not _NAME.fullmatch(name):
        raise ConfigError(f"the link's run name {name[:64]!r} is not usable", remedy=_REMEDY)
    if len(digest_text) != _DIGEST_CHARS:
        raise ConfigError(
            f"the link's run digest has {counted(len(digest_text), 'character')} instead of {_DIGEST_CHARS}: it was "
            + ("cut off" if len(digest_text) < _DIGEST_CHARS else "changed"),
            remedy=_REMEDY,
        )
    try:
        run = base64.b32decode(digest_text.upper() + "====")
    except ValueError as error:
        wrong = "has a character that no digest has: it was changed"
        raise ConfigError(f"the link's run digest {digest_text!r} {wrong}", remedy=_REMEDY) from error
    assert len(run) == DIGEST_BYTES
    addresses = []
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key != "b" or len(value) > limits.MAX_ADDRESS_CHARS or not _is_complete(value):
            raise ConfigError(f"the link's peer address {value[:80]!r} is not a complete multiaddr", remedy=_REMEDY)
        addresses.append(value)
    if not addresses:
        raise ConfigError("the link names no peer to start from: its end was cut off", remedy=_REMEDY)
    return JoinLink(name, Digest(run), tuple(addresses[: limits.MAX_ADDRESSES]))


def peers_of(address: str) -> frozenset[PeerId]:
    """Every peer that a multiaddr names: its owner, and a relay in front of it."""
    return frozenset(map(PeerId, _PEER.findall(address)))


def _is_complete(address: str) -> bool:
    """Whether a multiaddr ends in a complete peer id (a truncated id is invalid)."""
    match = _MULTIADDR.fullmatch(address)
    ports = re.findall(r"/(?:tcp|udp)/([^/]+)", address)
    if not all(port.isascii() and port.isdecimal() and 0 < int(port) <= _MOST_PORT for port in ports):
        return False
    if match is None or not address.isprintable():  # bytes of a terminal that are no UTF-8 arrive as surrogates
        return False
    try:
        for peer in match.group(2, 4):
            if peer is not None:
                public_key_of(PeerId(peer))
    except IdentityError:
        return False
    return True
