"""Options of a node: its role, which versions it downloads and keeps, and the settings of its parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from p2prl.protocol.delegation import Delegation, Revocation
from p2prl.protocol.kinds import Role
from p2prl.protocol.membership_statements import Membership
from p2prl.swarm.gossip.forwarding import GossipConfig
from p2prl.swarm.groups.groups_config import GroupBodyConfig
from p2prl.swarm.peers.connections_config import ConnectionsConfig
from p2prl.swarm.relay.relay_config import RelayConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeConfig:
    """Role and options of one node. Each option is a field, because an owner may choose it without the others."""

    role: Role
    """Decides which messages peers send it unasked."""
    fetch_policies: bool = True
    """Whether it downloads the run's files and the newest weights; a scoreboard does not."""
    keep_versions: int = 4
    """Newest policy versions kept and served. Two are enough for the node itself; slower peers need the others."""
    rebuilds: bool = False
    """Whether its owner decodes patches when asked to (`PatchesReady`); otherwise it downloads full weights."""
    awaits_base: bool = False
    """Whether its owner may have weights to start from: nothing is downloaded until it reports (`StartFrom`)."""
    runs_code: bool = False
    """Whether the owner of a validator agreed to run a researcher's own scorer: its code and answers are downloaded."""
    awaits_consent: bool = False
    """Whether the owner first decides on the run: nothing is downloaded until it has (`RunAccepted`)."""
    disk_bytes: int = 0
    """Most bytes of weights, patches, files, data and group bodies on disk together (`DiskQuota`). 0: only
    `keep_versions` limits, until the owner accepts the run with another bound."""
    is_listed: bool = False
    """Whether its owner has chosen that join links may name it with its address."""
    price: float | None = None
    """What an hour of a volunteer's work costs its owner, who agrees that it stands by at times; None if not."""
    delegations: tuple[Delegation, ...] = ()
    """The delegation of this machine's key by its owner, sent to the learner."""
    revocations: tuple[Revocation, ...] = ()
    """Revocations that this machine passes on to the learner for its owner."""
    memberships: tuple[Membership, ...] = ()
    """The membership of its owner, or of this machine if it has none, sent to the learner."""
    connections: ConnectionsConfig = field(default_factory=ConnectionsConfig)
    gossip: GossipConfig = field(default_factory=GossipConfig)
    relay: RelayConfig = field(default_factory=RelayConfig)
    groups: GroupBodyConfig = field(default_factory=GroupBodyConfig)

    @property
    def follows_newest(self) -> bool:
        """Whether it downloads new versions; the learner makes them."""
        return self.fetch_policies and self.role is not Role.LEARNER

    @property
    def mirrors_patches(self) -> bool:
        """Whether it downloads every patch of a new version to serve it, needed or not: a seeder does."""
        return self.role is Role.SEEDER
