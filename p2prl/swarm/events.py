"""Events of a node for its owner, beside the reports of `p2prl.swarm.signals`, and commands for its shell."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import PeerId
from p2prl.protocol.manifests import PolicyManifest, RunManifest
from p2prl.swarm.signals import NodeReport


@dataclass(frozen=True, slots=True)
class RunKnown:
    """The run manifest behind the join link has arrived and matches the link's digest."""

    manifest: RunManifest
    raw: bytes


@dataclass(frozen=True, slots=True)
class RunRefused:
    """The run's learner signed what no honest learner signs, or what its own manifest rules out: stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class VersionReady:
    """All chunks of a policy version are on disk and verified."""

    manifest: PolicyManifest
    digest: Digest
    raw: bytes
    """The manifest's envelope, to be kept beside the weights."""


@dataclass(frozen=True, slots=True)
class PatchesReady:
    """All patches of a route to a version are on disk and hash to their names.

    The owner decodes them and answers `VersionRebuilt`.
    """

    manifest: PolicyManifest
    digest: Digest
    dtype: str
    """Number type of the weights."""
    base: Digest | None
    """Root of the weights the route starts from, or the digest of the owner's local base; None for a keyframe."""
    patches: tuple[Digest, ...]
    """Roots of the patches, in the order in which they apply; empty when the local base is the version itself."""
    base_version: int
    """Version the route starts from; `NO_BASE` for a keyframe or the local base."""
    held: tuple[Digest, ...]
    """Roots of the weights that the node holds, as in `WeightsReleased`."""


@dataclass(frozen=True, slots=True)
class WeightsReleased:
    """Versions have been released: the owner may forget all weights but these."""

    held: tuple[Digest, ...]
    """Roots."""


@dataclass(frozen=True, slots=True)
class BaseReleased:
    """The owner's local base (`StartFrom`) is no longer needed."""

    digest: Digest
    matches_run: bool | None
    """Whether the learner signed these weights as some version; None if no manifest has decided it."""
    version: int | None
    """The version that has just completed, whether or not it was rebuilt from the base."""
    patch_bytes: int
    """Bytes of the patches that version was rebuilt from."""
    saved_bytes: int
    """Extra bytes that version would have cost without the base; 0 when the base was not used."""


@dataclass(frozen=True, slots=True)
class LearnerSilent:
    """The last policy head has expired: nothing newer has arrived from the learner since it was signed."""

    version: int
    since_s: float


@dataclass(frozen=True, slots=True)
class FileReady:
    """A run file (configuration, tokenizer) is on disk and verified."""

    name: str
    root: Digest


@dataclass(frozen=True, slots=True)
class EnvelopeArrived:
    """A new, verified signed message of a kind this node's role receives."""

    opened: Opened
    source: PeerId


@dataclass(frozen=True, slots=True)
class GroupFetched:
    """The body of a group that the owner wanted (`FetchGroup`) is on disk, and every part hashes to its name.

    The owner reads it and answers `ReleaseGroup`.
    """

    opened: Opened
    root: Digest
    """Root of the body."""


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """The number of linked peers of some role changed: (role name, count)."""

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
    """The learner signed two documents that contradict each other: proof that it cannot be trusted."""

    first: bytes
    second: bytes
    is_own: bool = False
    """Whether this node is the learner: then another machine has its key."""


@dataclass(frozen=True, slots=True)
class PeerBanned:
    """A peer was banned for breaking the wire's rules."""

    peer: PeerId
    reason: str


Event = (
    NodeReport
    | RunKnown
    | RunRefused
    | VersionReady
    | PatchesReady
    | WeightsReleased
    | BaseReleased
    | LearnerSilent
    | FileReady
    | EnvelopeArrived
    | GroupFetched
    | PeersChanged
    | ClockOff
    | WireMismatch
    | Equivocation
    | PeerBanned
)


@dataclass(frozen=True, slots=True)
class Send:
    """Send `frame` to `peer`. A `bulk` frame carries a weight chunk and must never delay the others."""

    peer: PeerId
    frame: bytes
    bulk: bool


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a connection to `peer` at one of these addresses."""

    peer: PeerId
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Meet:
    """Dial `peer` at the address at once: it dials us too. `dials` says whether the connection counts as ours."""

    peer: PeerId
    address: str
    dials: bool


@dataclass(frozen=True, slots=True)
class Register:
    """Publish this signed peer record in the directory until `expires_at`."""

    record: bytes
    expires_at: float
    under_run: bool = True
    """Under the run's key, of which everybody reads a sample."""
    under_name: bool = False
    """Under a key of this peer, where it is found by name."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """Fetch the run's peer records from the directory."""

    peers: tuple[PeerId, ...] = ()
    """Those whose own records are wanted."""
    is_sample: bool = True
    """Whether to fetch a sample of all."""


Command = Send | Dial | Meet | Register | LookUp
