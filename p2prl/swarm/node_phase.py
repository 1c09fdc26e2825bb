"""Interface of a node's two phases, before and after the run manifest is known.

`p2prl.swarm.awaiting_manifest` and `p2prl.swarm.running` implement it. `Node` calls the same methods on either, and
replaces the phase when the manifest arrives.
"""

from __future__ import annotations

from typing import Protocol

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.swarm.policies.download_stats import DownloadStats


class Phase(Protocol):
    """Behavior of a node that depends on whether the run manifest is known."""

    def on_link(self, peer: PeerId) -> None:
        """A link to a peer is up."""
        ...

    def on_hello(self, peer: PeerId, role: Role, newest_version: int, now: float) -> None:
        """A peer's hello arrived, with the newest version it has."""
        ...

    def on_push(self, raw: bytes, source: PeerId, now: float) -> Phase:
        """Take in an envelope; returns the node's phase from now on."""
        ...

    def admit_own(self, opened: Opened, now: float) -> None:
        """Take in an envelope that this node publishes, before it is spread."""
        ...

    def retry(self, now: float) -> None:
        """Ask again for what has not arrived; called every few seconds."""
        ...

    def handle_timer(self, now: float) -> None:
        """Do what is due."""
        ...

    def next_deadline(self) -> float:
        """When `handle_timer` is due; ∞ for never."""
        ...

    def advance(self, now: float) -> None:
        """Handle completed downloads and collect events."""
        ...

    def accept_run(self, disk_bytes: int, now: float) -> None:
        """The owner has decided for the run, with this much disk."""
        ...

    def fetch_policy(self, name: Digest, now: float) -> None:
        """Download a version by name."""
        ...

    def start_from(self, digest: Digest | None, now: float) -> None:
        """Set the owner's local base."""
        ...

    def rebuilt(self, name: Digest, ok: bool, now: float) -> None:
        """A rebuild has ended."""
        ...

    def download_stats(self) -> DownloadStats:
        """Download volume so far."""
        ...

    def transfer_progress(self) -> tuple[int, int, int]:
        """(version, chunks held, chunks in all) being downloaded."""
        ...

    def file_progress(self) -> tuple[int, int]:
        """(bytes held, bytes in all) of the run's files and data."""
        ...
