"""Signed messages about peers: the directory record, and the learner's introduction of peers to each other."""

from __future__ import annotations

import contextlib

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.identity import PUBLIC_KEY_BYTES
from p2prl.protocol.wire_codec import Wire

_NOTE = "/p2prl/"
"""Begins an entry of the addresses that is a note. It is no multiaddr, so a program that does not know it dials the
others and passes over this one."""

LISTED = _NOTE + "listed"
"""Note of a peer that has chosen to be named in join links. A peer whose record lacks it has not chosen so."""

_STANDBY = _NOTE + "standby/"
"""Begins the note of a peer that may be told to stand by; its price follows."""


class PeerRecord(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A peer's entry in the directory: every peer of the run can read it. It holds no location and no hardware."""

    role: int
    addresses: tuple[str, ...]
    newest_version: int
    started_ms: int
    """When the process that uses this key started, Unix milliseconds. Of two processes with one key the later stops."""

    @property
    def is_listed(self) -> bool:
        """Whether join links, and the pages that show them, may name the peer with its address."""
        return LISTED in self.addresses

    @property
    def dialable(self) -> tuple[str, ...]:
        """The addresses, without the notes."""
        return tuple(address for address in self.addresses if not address.startswith(_NOTE))

    @property
    def price(self) -> float | None:
        """What an hour of the peer's work costs its owner, who agreed that it may stand by; None if not."""
        for address in self.addresses:
            if address.startswith(_STANDBY):
                with contextlib.suppress(ValueError):
                    price = float(address.removeprefix(_STANDBY))
                    return price if 0.0 <= price <= limits.MAX_PRICE else None
        return None

    def check(self) -> None:
        """Raise `RemoteProtocolError` for too many addresses or an unprintable one."""
        if len(self.addresses) > limits.MAX_ADDRESSES:
            raise RemoteProtocolError(f"peer record announces {len(self.addresses)} addresses")
        if any(len(a) > limits.MAX_ADDRESS_CHARS or not a.isprintable() for a in self.addresses):
            raise RemoteProtocolError("peer record holds an unusable address")
        if not 0 <= self.started_ms < 1 << 53:
            raise RemoteProtocolError("peer record: impossible time")


class Introduction(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The learner's list of neighbors for one peer. It is advice: a peer that gets none links at random."""

    peer: bytes
    """Public key of the peer that it is meant for."""
    neighbors: tuple[bytes, ...]
    """Public keys of the peers to link with."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` for a list that no learner of this wire version writes."""
        if len(self.neighbors) > limits.MAX_INTRODUCED:
            raise RemoteProtocolError(f"introduction to {len(self.neighbors)} peers")
        if any(len(key) != PUBLIC_KEY_BYTES for key in (self.peer, *self.neighbors)):
            raise RemoteProtocolError("introduction: a name is not a public key")


class Standby(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The learner's word that it has enough groups without these peers. It is advice, and binds only peers whose owners
    agreed to it beforehand."""

    peers: tuple[bytes, ...]
    """Public keys of the peers that stand by. All others work."""
    until_ms: int
    """When they work again unless a newer message names them: it may be withheld from them."""

    def check(self, *, sent_ms: int) -> None:
        """Raise `RemoteProtocolError` for a list that no learner of this wire version writes."""
        if len(self.peers) > limits.MAX_ON_STANDBY:
            raise RemoteProtocolError(f"{len(self.peers)} peers on standby")
        if any(len(key) != PUBLIC_KEY_BYTES for key in self.peers):
            raise RemoteProtocolError("standby: a name is not a public key")
        if not 0 < self.until_ms - sent_ms <= limits.MAX_STANDBY_S * 1000:
            raise RemoteProtocolError("standby: until_ms is out of range")


def standby_note(price: float) -> str:
    """The entry of a record's addresses that offers to stand by, with its price an hour."""
    return f"{_STANDBY}{price:.6g}"
