"""What a node tells its owner, and what it asks the shell to do."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.manifests import PolicyManifest, RunManifest


@dataclass(frozen=True, slots=True)
class RunKnown:
    """The run manifest behind the join link has arrived and matches the link's digest."""

    manifest: RunManifest
    raw: bytes


@dataclass(frozen=True, slots=True)
class VersionAnnounced:
    """A newer policy manifest was verified; its weights are on their way if this node wants them."""

    manifest: PolicyManifest
    digest: Digest


@dataclass(frozen=True, slots=True)
class VersionReady:
    """All chunks of a policy version are here and verified."""

    manifest: PolicyManifest
    digest: Digest
    raw: bytes
    """The manifest's envelope, to be kept beside the weights."""


@dataclass(frozen=True, slots=True)
class PatchesReady:
    """All patches that lead to a version are here and hash to their names: the owner decodes them and says how it went
    (`Node.rebuilt`)."""

    manifest: PolicyManifest
    digest: Digest
    dtype: str
    """Word type of the weights."""
    base: Digest | None
    """Root of the weights they start from, or the digest of the owner's base; None for a keyframe."""
    patches: tuple[Digest, ...]
    """Roots of the streams, in the order in which they apply; none when the base is the version itself."""


@dataclass(frozen=True, slots=True)
class BaseSettled:
    """The owner's base (`Node.start_from`) is needed no more."""

    state: Digest
    fits: bool | None
    """Whether the learner signed these words as some version's; None when nothing that arrived told."""
    version: int | None
    """The version that has just come, by way of it or not."""
    patch_bytes: int
    """What that version cost by way of it."""
    spared_bytes: int
    """What it would have cost more otherwise; 0 when the base was not used."""


@dataclass(frozen=True, slots=True)
class LearnerSilent:
    """The last head has expired: nothing fresh has been heard of the learner since it signed that."""

    version: int
    since_s: float


@dataclass(frozen=True, slots=True)
class FileReady:
    """A run file (configuration, tokenizer) is here and verified."""

    name: str
    root: Digest


@dataclass(frozen=True, slots=True)
class EnvelopeArrived:
    """A signed message this node's role has a use for, verified and new."""

    opened: Opened
    source: PeerId


@dataclass(frozen=True, slots=True)
class LedgerWanted:
    """A neighbour asks for ledger entries from a height on."""

    peer: PeerId
    from_height: int


@dataclass(frozen=True, slots=True)
class LedgerArrived:
    """A page of ledger entries, unchecked: the scoreboard follows the chain itself."""

    peer: PeerId
    from_height: int
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """The neighbourhood changed: peers by role name."""

    roles: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ClockOff:
    """Several peers agree that this machine's clock is wrong by `offset_s` (positive: it is behind)."""

    offset_s: float


@dataclass(frozen=True, slots=True)
class WireMismatch:
    """A peer of this run speaks another wire version."""

    peer: PeerId
    wire_version: int


@dataclass(frozen=True, slots=True)
class Equivocation:
    """The learner signed two manifests for one version: proof that it cannot be followed."""

    first: bytes
    second: bytes


@dataclass(frozen=True, slots=True)
class PeerBanned:
    """A neighbour broke the wire's rules in a way that proves itself."""

    peer: PeerId
    reason: str


Event = (
    RunKnown
    | VersionAnnounced
    | VersionReady
    | PatchesReady
    | BaseSettled
    | LearnerSilent
    | FileReady
    | EnvelopeArrived
    | LedgerWanted
    | LedgerArrived
    | PeersChanged
    | ClockOff
    | WireMismatch
    | Equivocation
    | PeerBanned
)


@dataclass(frozen=True, slots=True)
class Send:
    """Hand `frame` to `peer`. `bulk` frames carry a weight chunk and must never delay the others."""

    peer: PeerId
    frame: bytes
    bulk: bool


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a connection to `peer` at one of these addresses."""

    peer: PeerId
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Register:
    """Publish this signed peer record in the directory until `expires_at`."""

    record: bytes
    expires_at: float


@dataclass(frozen=True, slots=True)
class LookUp:
    """Fetch the run's peer records from the directory."""


Command = Send | Dial | Register | LookUp
