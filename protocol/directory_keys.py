"""Keys of peer records in the directory: one for a run, of which readers get a sample, and one for each name in it."""

from __future__ import annotations

from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.identity import PeerId


def run_key(run: bytes) -> Digest:
    """The key under which the peers of a run are found."""
    return digest("p2prl/directory/v1", run)


def name_key(run: bytes, peer: PeerId) -> Digest:
    """The key under which one peer of a run is found by its name."""
    return digest("p2prl/directory-name/v1", run, peer.encode())
