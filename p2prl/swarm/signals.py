"""Signals between a node and its role: the role's orders, and what the node reports as it is.

Both ends use these structs: the node acts on an order (`Node.order`) and appends a report to its events; the network
process packs them as they are (`p2prl.net.process.control`). They are not part of the wire. A new order is a struct
here and a case in `Node.order` or `Running.order`; a new report is a struct here and an append to the events where it
happens. What has to become a path or a sentence first is an event of `p2prl.swarm.events`.
"""

from __future__ import annotations

import msgspec


class Signal(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of both directions; tagged by class name."""


# --- orders of the role -------------------------------------------------------------------------------------------


class Publish(Signal, frozen=True, array_like=True, tag=True):
    """Spread an envelope signed with the node's own key, again if it was spread before, or a ledger head or
    countersignature from disk."""

    envelope: bytes


class HoldGroup(Signal, frozen=True, array_like=True, tag=True):
    """Serve the body of an own group, by its header envelope's digest: before it is published, and when wanted."""

    digest: bytes
    body: bytes


class FetchGroup(Signal, frozen=True, array_like=True, tag=True):
    """Download the body of a group by its header envelope's digest."""

    digest: bytes


class ReleaseGroup(Signal, frozen=True, array_like=True, tag=True):
    """The role has read a fetched body, or has no use for it."""

    digest: bytes


class SetLedgerHeight(Signal, frozen=True, array_like=True, tag=True):
    """Number of ledger entries this role can serve, as the node's hellos announce."""

    height: int


class AskLedger(Signal, frozen=True, array_like=True, tag=True):
    """Ask the neighbor with the longest ledger for entries from a height on."""

    from_height: int


class SendLedger(Signal, frozen=True, array_like=True, tag=True):
    """Answer a `LedgerWanted` with as many of these entries as one message can hold."""

    peer: str
    from_height: int
    entries: tuple[bytes, ...]


class AskFollow(Signal, frozen=True, array_like=True, tag=True):
    """As a standby learner, ask the linked learner for one piece of its copy of the run (`FollowQuery`)."""

    permit: bytes
    held: int
    copy: int
    file: int
    piece: int


class SendFollow(Signal, frozen=True, array_like=True, tag=True):
    """Answer a `FollowWanted`."""

    peer: str
    copy: int
    file: int
    piece: int
    data: bytes


class RunAccepted(Signal, frozen=True, array_like=True, tag=True):
    """The user has been told what the run needs: download it, within this much disk.

    Needed only with `NodeConfig.awaits_consent`.
    """

    disk_bytes: int
    """Most bytes on disk; 0 for no bound."""


class FetchPolicy(Signal, frozen=True, array_like=True, tag=True):
    """Download one policy version by its manifest envelope's digest, besides the newest."""

    digest: bytes


class StartFrom(Signal, frozen=True, array_like=True, tag=True):
    """The role has looked for a base model on disk: its weights are in the blob directory, named by their digest, and
    patches can be decoded from them."""

    weights_digest: bytes
    """Empty when there is none."""


class VersionRebuilt(Signal, frozen=True, array_like=True, tag=True):
    """Answer to `PatchesReady`: the weights are where the store looks for them, or another route is needed."""

    digest: bytes
    """Of the policy manifest's envelope."""
    ok: bool


RunOrder = RunAccepted | FetchPolicy | StartFrom | VersionRebuilt
"""Orders about a run whose manifest is known; ignored before."""

FollowOrder = AskFollow | SendFollow
"""Orders of a standby learner, and of the learner that it follows."""

NodeOrder = (
    Publish | HoldGroup | FetchGroup | ReleaseGroup | SetLedgerHeight | AskLedger | SendLedger | FollowOrder | RunOrder
)


# --- reports that reach the role as they are ----------------------------------------------------------------------


class Report(Signal, frozen=True, array_like=True, tag=True):
    """Base of these reports."""


class VersionAnnounced(Report, frozen=True, array_like=True, tag=True):
    """A newer policy version was verified; its weights are downloaded next if this node wants them."""

    version: int
    step: int


class GroupBodyWanted(Report, frozen=True, array_like=True, tag=True):
    """A neighbor requests parts of an own group that is no longer in memory; answer with `HoldGroup`."""

    digest: bytes


class PublishRefused(Report, frozen=True, array_like=True, tag=True):
    """An envelope was not published: no peer would accept it."""

    digest: bytes
    reason: str


class LedgerWanted(Report, frozen=True, array_like=True, tag=True):
    """A neighbor asks for ledger entries from a height on; answer with `SendLedger`."""

    peer: str
    from_height: int


class LedgerArrived(Report, frozen=True, array_like=True, tag=True):
    """Ledger entries, unchecked: the role follows the chain itself."""

    from_height: int
    entries: tuple[bytes, ...]


class FollowWanted(Report, frozen=True, array_like=True, tag=True):
    """A standby learner with the owner's permit asks for a piece; answer with `SendFollow`."""

    peer: str
    held: int
    copy: int
    file: int
    piece: int


class FollowArrived(Report, frozen=True, array_like=True, tag=True):
    """A piece that this standby learner asked the learner for."""

    copy: int
    file: int
    piece: int
    data: bytes


class StandbyOffers(Report, frozen=True, array_like=True, tag=True):
    """Peers that agree to stand by, according to the directory; all of them, whenever one changes."""

    prices: tuple[tuple[bytes, float], ...]
    """(public key, what an hour of its work costs)."""


class LinkLost(Report, frozen=True, array_like=True, tag=True):
    """The link to a peer has failed or fallen silent: it may have left. Reported to a learner."""

    peer: str


NodeReport = (
    VersionAnnounced
    | GroupBodyWanted
    | PublishRefused
    | LedgerWanted
    | LedgerArrived
    | FollowWanted
    | FollowArrived
    | StandbyOffers
    | LinkLost
)
