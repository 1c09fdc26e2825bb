"""Link messages: the structs that two linked peers exchange. The connection authenticates them.

Greeting (`Hello`, `LinkRates`), meetings (`MeetingRequest`, `Meeting`), gossip (`Offer`, `Want`, `Push`), chunk relay
(`BlobQuery` to `ChunkCancel`), ledger synchronization (`LedgerQuery`, `LedgerPage`), and the copy of a standby learner
(`FollowQuery`, `FollowPiece`); `Padding` pays for answers. `frames` packs them into bytes.
"""

from __future__ import annotations

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest, received_digest
from p2prl.protocol.kinds import Kind
from p2prl.protocol.wire_codec import Wire


class Hello(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """First message on a link. Repeated every few seconds and when something in it changes."""

    wire_version: int
    run: bytes
    role: int
    now_ms: int
    """The sender's clock, so that each end can notice that one of the two is wrong."""
    newest_version: int
    """Newest policy version whose manifest the sender has; −1 for none."""
    ledger_height: int
    """Number of ledger entries that the sender holds."""
    echo_ms: int = 0
    """`now_ms` of the last hello that the sender got on this link; 0 for none."""
    held_ms: int = 0
    """Time between that hello's arrival and this one, by the sender's clock. With it the receiver knows the round
    trip, and does not take a slow delivery for a wrong clock."""


class LinkRates(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bandwidth of the sender's link in kbit/s; 0 for unknown. It only orders queues, so a lie gains little."""

    upload_kbit_s: int
    download_kbit_s: int


class Offer(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Digests of envelopes that the sender can push."""

    digests: tuple[bytes, ...]


class Want(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Digests of envelopes that the sender asks the receiver to push."""

    digests: tuple[bytes, ...]


class Push(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One envelope, byte for byte as it was signed."""

    envelope: bytes


class BlobQuery(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Request for a `Have`: which chunks of this blob the receiver serves."""

    root: bytes


class Have(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Chunks of a blob that the sender serves: one bit each, the first chunk in the lowest bit of the first byte."""

    root: bytes
    bitmap: bytes


class ChunkGrant(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Permission to request one chunk of a blob: the one of this index, or, if it is −1, any the sender has."""

    root: bytes
    index: int


class GrantDeclined(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Refusal of a grant. `retry_ms` = 0: send no grant before the next `BlobQuery` for this blob."""

    root: bytes
    retry_ms: int


class ChunkRequest(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Request for one chunk of a blob."""

    root: bytes
    index: int


class Chunk(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bytes of one chunk, and what shows that they are: the siblings on its way to the top of the blob's tree."""

    root: bytes
    index: int
    proof: bytes
    """Digests, lowest first (`hash_tree`)."""
    data: bytes


Place = tuple[Digest, int]
"""A chunk by its blob's root and its index: its name between peers."""


class ChunkRefused(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Refusal of a request. `retry_ms` = 0: the sender does not have the chunk."""

    root: bytes
    index: int
    retry_ms: int


class ChunkCancel(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Cancels a request. A chunk that is already on its way may still arrive."""

    root: bytes
    index: int


class LedgerQuery(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Request for the ledger entries from this height on."""

    from_height: int


class LedgerPage(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Consecutive ledger entries, as the bytes that the chain hashes (`ledger_chain`)."""

    from_height: int
    entries: tuple[bytes, ...]


class MeetingRequest(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Request to arrange a meeting with a peer that the receiver is linked with, by its public key."""

    peer: bytes


class Meeting(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Invitation to meet a peer whose router, like the receiver's own, refuses strangers."""

    peer: bytes
    """Its public key."""
    address: str
    """Multiaddr that its connections come from, as the sender sees it."""
    dials: bool
    """Both dial at once. True: the receiver then speaks first, as if it alone had dialed. False: the other does."""


class FollowQuery(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Request of a standby learner for one piece of the learner's copy of the run (`FollowPiece`)."""

    permit: bytes
    """`follow_permit`: the run's key allows the sender to follow."""
    held: int
    """Number of the copy that the sender has on disk, whole; 0 for none. What it holds, the learner may publish."""
    copy: int
    """Number of the copy asked for; 0 for the head of the newest."""
    file: int
    """Place of the file in the copy's list; −1 for the list itself."""
    piece: int


class FollowPiece(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Answer to a `FollowQuery` of the same numbers. The head of the newest copy has file and piece −1."""

    copy: int
    file: int
    piece: int
    data: bytes


class Padding(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Bytes that mean nothing: a stranger is answered with at most `MAX_AMPLIFICATION` times what it sends."""

    data: bytes


def place_of(message: ChunkRequest | Chunk | ChunkRefused | ChunkCancel) -> Place:
    """The chunk that a peer's message is about. Raises `RemoteProtocolError` when no blob has it."""
    if not 0 <= message.index < limits.MAX_CHUNKS:
        raise RemoteProtocolError(f"no blob has a chunk {message.index}")
    return received_digest(message.root), message.index


LINK_MESSAGES: dict[Kind, type[Wire]] = {
    Kind.HELLO: Hello,
    Kind.OFFER: Offer,
    Kind.WANT: Want,
    Kind.PUSH: Push,
    Kind.HAVE: Have,
    Kind.CHUNK_REQUEST: ChunkRequest,
    Kind.CHUNK: Chunk,
    Kind.CHUNK_REFUSED: ChunkRefused,
    Kind.BLOB_QUERY: BlobQuery,
    Kind.LEDGER_QUERY: LedgerQuery,
    Kind.LEDGER_PAGE: LedgerPage,
    Kind.LINK_RATES: LinkRates,
    Kind.CHUNK_GRANT: ChunkGrant,
    Kind.GRANT_DECLINED: GrantDeclined,
    Kind.CHUNK_CANCEL: ChunkCancel,
    Kind.MEETING_REQUEST: MeetingRequest,
    Kind.MEETING: Meeting,
    Kind.PADDING: Padding,
    Kind.FOLLOW_QUERY: FollowQuery,
    Kind.FOLLOW_PIECE: FollowPiece,
}
"""The struct of each link message."""
