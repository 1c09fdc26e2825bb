"""Signed messages about peers: the directory record, and the learner's introduction of peers to each other."""

from __future__ import annotations

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.identity import PUBLIC_KEY_BYTES
from p2prl.protocol.wire_codec import Wire

LISTED = "/p2prl/listed"
"""Last entry of the addresses of a peer that has chosen to be named in join links. It is no multiaddr, so a program
that does not know it dials the others and passes over this one. A peer whose record lacks it has not chosen so."""


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
        """The addresses, without the entry that is none."""
        return tuple(address for address in self.addresses if address != LISTED)

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
