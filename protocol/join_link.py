"""Join links: the magnet-style address of a run, which carries its root of trust.

    p2prl://NAME@DIGEST?b=MULTIADDR&b=MULTIADDR

DIGEST is the run manifest's envelope digest in unpadded lower-case base32 (52 characters). The
peers at the bootstrap addresses can at worst stall a newcomer; they cannot substitute another run, learner or weights.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import string
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal
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
_IP6 = re.compile(r"/ip6/([^/]+)")
_PEER = re.compile(r"/p2p/(\w+)", re.ASCII)
_INCOMPLETE = "is not a complete multiaddr"
_QUOTES = "'\"`<>\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb"
"""What messages, mail programs and word processors set around a link."""

Reach = Literal["machine", "network", "internet"]
"""From where an address can be dialed."""

_REMEDY = "Copy the whole link again; it looks like p2prl://NAME@52-CHARACTERS?b=/ip4/…/tcp/…/p2p/…"


@dataclass(frozen=True, slots=True)
class JoinLink:
    """A parsed link: the run's name (for people), its manifest's digest (for trust) and peers to start from."""

    name: str
    run: Digest
    bootstrap: tuple[str, ...]

    def published(self, learner: PeerId, listed: Collection[PeerId]) -> JoinLink:
        """The link as a page may show it: with addresses alone that name the learner and `listed` peers, be it as a
        relay or as the one behind it. Of the peers none is named that readers elsewhere cannot dial: a private address
        beside an id tells of somebody's home."""
        shown = [each for each in self.bootstrap if peers_of(each) <= {learner, *listed}]
        own = [each for each in shown if learner in peers_of(each)]
        kept = {*own, *as_wide(shown, own)}
        return replace(self, bootstrap=tuple(each for each in shown if each in kept))

    def __str__(self) -> str:
        text = base64.b32encode(self.run).decode().rstrip("=").lower()
        query = "&".join(f"b={quote(address, safe='/:')}" for address in self.bootstrap)
        return f"{SCHEME}{self.name}@{text}" + (f"?{query}" if query else "")


def is_link(text: str) -> bool:
    """Whether a user means a join link by this text, and no file or name."""
    return _unquoted(text).lower().startswith(SCHEME)


def parse_link(text: str, *, needs_peer: bool = True) -> JoinLink:
    """Parse a join link. Raise a `ConfigError` that names the wrong part and the remedy.

    Without `needs_peer` it may name no peer: for those who wait until they are dialed.
    """
    text = _unquoted(text).replace("&amp;", "&")  # of the source of a page
    if not text:
        raise ConfigError("the join link is empty", remedy=_REMEDY)
    if not text.lower().startswith(SCHEME):  # RFC 3986, section 3.1: a phone may write P2prl
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
        if key != "b":
            raise ConfigError(f"the link has a part {key[:16]!r}, which no link has", remedy=_REMEDY)
        if fault := _fault_of(value):
            raise ConfigError(f"the link's peer address {value[:80]!r} {fault}", remedy=_REMEDY)
        addresses.append(value)
    if not addresses and needs_peer:
        raise ConfigError("the link names no peer to start from: its end was cut off", remedy=_REMEDY)
    usable = [address for address in addresses if not needs_zone(address)]
    if addresses and not usable:
        raise ConfigError(
            f"the link's peer address {addresses[0][:80]!r} works on one local network alone, by a name of that "
            "machine's interface",
            remedy="Ask the run's owner for a link with another address; p2prl learn prints one.",
        )
    return JoinLink(name, Digest(run), tuple(usable[: limits.MAX_ADDRESSES]))


def peers_of(address: str) -> frozenset[PeerId]:
    """Every peer that a multiaddr names: its owner, and a relay in front of it."""
    return frozenset(map(PeerId, _PEER.findall(address)))


def needs_zone(address: str) -> bool:
    """Whether a multiaddr can be dialed from its own local network alone, with the name of an interface of the dialing
    machine: IPv6 link-local ones (`fe80::1%eth0`), with a zone or without. A link that carries one helps nobody."""
    hosts = _IP6.findall(address)
    return "/ip6zone/" in address or any("%" in host or ipaddress.ip_address(host).is_link_local for host in hosts)


def reach_of(address: str) -> Reach:
    """From where a multiaddr can be dialed. A host name or a relay counts as internet, since its reach is unknown."""
    if needs_zone(address):
        return "network"
    parts = address.split("/")
    if "p2p-circuit" in parts or parts[1:2] not in (["ip4"], ["ip6"]):
        return "internet"
    ip = ipaddress.ip_address(parts[2])
    if ip.is_loopback:
        return "machine"
    return "internet" if ip.is_global else "network"


def as_wide(others: Iterable[str], own: Iterable[str]) -> tuple[str, ...]:
    """The addresses of `others` that reach as far as the one of `own` that reaches farthest."""
    least = max(map(_width, own), default=0)
    return tuple(address for address in others if _width(address) >= least)


def _width(address: str) -> int:
    return ("machine", "network", "internet").index(reach_of(address))


def _unquoted(text: str) -> str:
    """The text without the white space and quotation marks that a message leaves around it."""
    return text.strip().strip(_QUOTES + string.whitespace)


def _is_ip(host: str, version: int) -> bool:
    try:
        return ipaddress.ip_address(host).version == version
    except ValueError:
        return False


def _fault_of(address: str) -> str:
    """What is wrong with a multiaddr; empty for one that ends in a complete peer id and can be dialed."""
    match = _MULTIADDR.fullmatch(address)
    # Bytes of a terminal that are no UTF-8 arrive as surrogates.
    if match is None or not address.isprintable() or len(address) > limits.MAX_ADDRESS_CHARS:
        return _INCOMPLETE
    for version, host in re.findall(r"/ip([46])/([^/]+)", address):
        if not _is_ip(host, int(version)):
            return f"is not usable: {host[:40]!r} is no IPv{version} address"
    for port in re.findall(r"/(?:tcp|udp)/([^/]+)", address):
        if not (port.isascii() and port.isdecimal() and 0 < int(port) <= _MOST_PORT):
            return f"is not usable: {port[:40]!r} is no port from 1 to {_MOST_PORT}"
    try:
        for peer in filter(None, match.group(2, 4)):
            public_key_of(PeerId(peer))
    except IdentityError:
        return _INCOMPLETE
    return ""
