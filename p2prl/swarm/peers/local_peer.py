"""Local peer: this node's identity, role and progress, as announced in its hellos and directory record."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Role


@dataclass(slots=True)
class LocalPeer:
    """This node's announced data; the node keeps it current."""

    identity: Identity
    role: Role
    run: Digest
    started_ms: int = 0
    """When this node started, Unix milliseconds."""
    addresses: tuple[str, ...] = ()
    is_listed: bool = False
    """Whether its owner has chosen that join links may name it with its address."""
    price: float | None = None
    """What an hour of its work costs its owner, who agrees to stand by when others are enough; None if not."""
    newest_version: int = -1
    ledger_height: int = 0
    learner: PeerId | None = None
    """Peer whose key signed the run manifest, once that is known. Other peers that claim the role are not learners."""
    changed: bool = False
    """Set when a hello should be sent before the next regular one."""
