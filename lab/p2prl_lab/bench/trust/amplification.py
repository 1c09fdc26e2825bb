"""Amplification: bytes that a node sends because of a stranger's messages, for each byte of them, by message kind.

The node is the learner of a run with a version of as many chunks as a blob may have, a ledger, a large batch of
receipts and a stored group, on virtual time. A stranger links, sends the message of one kind that is answered with
most, twice a second, and never sends anything else but what that needs first. What the node sends to a stranger that
asks nothing is subtracted.

Chunks are counted apart: they wait for their turn within the owner's upload rate, and are what it is lent for. What a
node passes on is not counted: an envelope goes to each neighbor once, within the quotas of its kind.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from p2prl.protocol import frames, limits, wire_version
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.follow_permit import PERMIT_BYTES
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState, StorageReceipt
from p2prl.protocol.link_messages import (
    BlobQuery,
    Chunk,
    ChunkCancel,
    ChunkGrant,
    ChunkRefused,
    ChunkRequest,
    FollowPiece,
    FollowQuery,
    GrantDeclined,
    Have,
    Hello,
    LedgerPage,
    LedgerQuery,
    LinkRates,
    Meeting,
    MeetingRequest,
    Offer,
    Padding,
    Push,
    Want,
)
from p2prl.protocol.manifests import BlobRef, PolicyManifest
from p2prl.protocol.policy_head import PatchEdge, PolicyHead
from p2prl.protocol.rollout_group import Completion, EngineClass, RolloutGroup
from p2prl.protocol.wire_codec import Wire
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_time import START
from p2prl.swarm import signals
from p2prl.swarm.events import Send
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.chunk_sets import to_bitmap
from p2prl_lab.sim.memory_blobs import MemoryBlobs

_EVERY_S = 0.5
_CHUNKS = limits.MAX_CHUNKS
_ENTRY = bytes(1_500)
_VERSION = 512


@dataclass(frozen=True, slots=True)
class AmplificationRow:
    """One message kind of strangers."""

    message: str
    ratio: float
    """Bytes that the node sent at once for each byte that the stranger sent."""
    paced_ratio: float
    """Bytes of chunks, which wait for their turn in the upload rate, for each byte that the stranger sent."""


class _AllChunks(MemoryBlobs):
    """A disk that has each chunk of every blob, as zeros."""

    def begin(self, ref: BlobRef) -> AbstractSet[int]:
        return frozenset(range(ref.total))

    def proof(self, ref: BlobRef, index: int) -> bytes:  # noqa: ARG002 - the stranger looks at none
        return bytes(32 * (ref.total - 1).bit_length())

    def read(self, ref: BlobRef, index: int) -> bytes:
        return bytes(ref.span(index)[1])


class Target:
    """A learner's node, and what a stranger can name to it."""

    def __init__(self, seed: int) -> None:
        self.now = START
        self.rng = random.Random(f"amplification/{seed}")  # noqa: S311 - simulated
        self._key = identity_of("learner")
        self.author = identity_of("volunteer")
        self.stranger = identity_of("stranger")
        self.other = identity_of("other stranger")
        self.weights = BlobRef(_CHUNKS * limits.MIN_CHUNK_BYTES, limits.MIN_CHUNK_BYTES, self.rng.randbytes(32))
        body = run_manifest_of(self._key, weight_bytes=self.weights.size_bytes)
        manifest = seal(self._key, body, run=bytes(32), now=START)
        self.run = envelope_digest(manifest)
        self.node = Node(self._key, self.run, _AllChunks(), self.rng, NodeConfig(role=Role.LEARNER), START)
        self.node.begin(manifest)
        self.grants: deque[int] = deque()
        """Chunks that the stranger may request."""
        version = PolicyManifest(
            _VERSION, _VERSION, self.weights, bytes(32), bytes(32), bytes(32), int(START * 1000), ()
        )
        policy = self._publish(version)
        edges = tuple(
            PatchEdge(newer, newer - 1, 1_000, envelope_digest(policy) if newer == _VERSION else bytes(32))
            for newer in range(1, _VERSION + 1)
        )
        expires_ms = int((START + limits.MAX_HEAD_LIFE_S) * 1000)
        size = self.weights.size_bytes
        self._publish(PolicyHead(_VERSION, envelope_digest(policy), 0, size, edges, 0, expires_ms))
        receipts = tuple(
            Receipt(self.rng.randbytes(32), self.author.public_key, 0, slot, int(ReceiptState.VERIFIED), "", 32, 4, 1.0)
            for slot in range(limits.MAX_RECEIPTS_PER_MESSAGE)
        )
        self.receipts = envelope_digest(self._publish(Receipts(1, receipts)))
        completions = (Completion(tokens=bytes(4), logprobs=bytes(2), finished=True, reward=0.0),) * 4
        engine = EngineClass("none", "1", "float32", "cpu")
        group = RolloutGroup(0, bytes(32), 1, "chain4", bytes(4), completions, engine, seconds=0.0)
        self.group = seal(self.author, group, run=self.run, now=START)
        stored = (envelope_digest(self.group), *(Digest(self.rng.randbytes(32)) for _ in range(511)))
        self._publish(StorageReceipt(stored))
        self.node.order(signals.SetLedgerHeight(100_000), START)
        self.node.commands(START)

    def _publish(self, body: Wire) -> bytes:
        raw = seal(self._key, body, run=self.run, now=START)
        self.node.publish(raw, START)
        return raw

    def request(self) -> ChunkRequest:
        """A request for a chunk that was granted, if any was."""
        return ChunkRequest(self.weights.root, self.grants.popleft() if self.grants else 0)

    def hello(self, newest: int = _VERSION, role: Role = Role.SEEDER) -> Hello:
        """A hello of a peer that has this version."""
        return Hello(wire_version.WIRE_VERSION, self.run, int(role), int(self.now * 1000), newest, 0)


Question = Callable[[Target, int], tuple[Wire, ...]]
"""Messages of a turn."""


def _nothing(target: Target, turn: int) -> tuple[Wire, ...]:
    del target, turn
    return ()


QUESTIONS: Mapping[Kind, Question] = MappingProxyType(
    {
        Kind.HELLO: lambda target, _: (target.hello(newest=-1),),
        Kind.OFFER: lambda target, _: (Offer(tuple(target.rng.randbytes(32) for _ in range(64))),),
        Kind.WANT: lambda target, _: (Want((target.receipts,)),),
        Kind.PUSH: lambda target, _: (Push(target.group),),
        Kind.HAVE: lambda target, turn: (Have(target.weights.root, to_bitmap(1 << turn % _CHUNKS, _CHUNKS)),),
        Kind.CHUNK_REQUEST: lambda target, _: (target.request(),),
        Kind.CHUNK: lambda target, turn: (Chunk(target.weights.root, turn % _CHUNKS, b"", bytes(64)),),
        Kind.CHUNK_REFUSED: lambda target, turn: (ChunkRefused(target.weights.root, turn % _CHUNKS, 0),),
        Kind.BLOB_QUERY: lambda target, _: (GrantDeclined(target.weights.root, 0), BlobQuery(target.weights.root)),
        Kind.LEDGER_QUERY: lambda _, turn: (LedgerQuery(turn),),
        Kind.LEDGER_PAGE: lambda _, turn: (LedgerPage(turn, (b"entry",)),),
        Kind.LINK_RATES: lambda _, turn: (LinkRates(turn, turn),),
        Kind.CHUNK_GRANT: lambda target, _: (ChunkGrant(target.weights.root, -1),),
        Kind.GRANT_DECLINED: lambda target, _: (GrantDeclined(target.weights.root, 1),),
        Kind.CHUNK_CANCEL: lambda target, turn: (ChunkCancel(target.weights.root, turn % _CHUNKS),),
        Kind.MEETING_REQUEST: lambda target, _: (MeetingRequest(target.other.public_key),),
        Kind.MEETING: lambda target, _: (Meeting(target.other.public_key, "/ip4/44.131.7.1/tcp/4001", True),),
        Kind.PADDING: lambda _, turn: (Padding(bytes(turn)),),
        Kind.FOLLOW_QUERY: lambda _, turn: (FollowQuery(bytes(PERMIT_BYTES), 0, turn, 0, 0),),
        Kind.FOLLOW_PIECE: lambda _, turn: (FollowPiece(turn, 0, 0, b"piece"),),
    }
)
"""The question of each kind that is answered with most."""


def amplification_of(kind: Kind, *, seed: int = 0, lasts_s: float = 120.0, dialed: bool = False) -> AmplificationRow:
    """Measure one kind. `dialed` has the node dial the stranger: anybody may write a record into the directory."""
    asked, sent, paced = _bytes_of(kind, seed, lasts_s, dialed)
    _, quiet, quiet_paced = _quiet(seed, lasts_s, dialed)
    return AmplificationRow(kind.name, max(0, sent - quiet) / asked, max(0, paced - quiet_paced) / asked)


@cache
def _quiet(seed: int, lasts_s: float, dialed: bool) -> tuple[int, int, int]:
    return _bytes_of(None, seed, lasts_s, dialed)


def _bytes_of(kind: Kind | None, seed: int, lasts_s: float, dialed: bool) -> tuple[int, int, int]:
    """Bytes that the stranger sent, and that the node sent at once and in chunks, to anybody."""
    target = Target(seed)
    question = _nothing if kind is None else QUESTIONS[kind]
    asked = sent = paced = 0
    for place, peer in enumerate((target.stranger, target.other)):
        target.node.note_address(peer.peer_id, f"/ip4/44.131.{place}.1/tcp/4001")
        if dialed and peer is target.stranger:
            target.node.connected(peer.peer_id, target.now)
        target.node.receive(frames.pack(target.hello()), peer.peer_id, target.now)
    if kind in (Kind.GRANT_DECLINED, Kind.CHUNK_REQUEST, Kind.CHUNK_CANCEL):
        target.node.receive(frames.pack(BlobQuery(target.weights.root)), target.stranger.peer_id, target.now)
    turns = int(lasts_s / _EVERY_S)
    for turn in range(turns):
        target.now += _EVERY_S
        if turn % 20 == 0:
            hello = frames.pack(target.hello())
            asked += len(hello)
            for peer in (target.stranger, target.other):
                target.node.receive(hello, peer.peer_id, target.now)
        packed = b"".join(map(frames.pack, question(target, turn)))
        if packed:
            target.node.receive(packed, target.stranger.peer_id, target.now)
            asked += len(packed)
        target.node.handle_timer(target.now)
        for _ in range(3):
            for command in target.node.commands(target.now):
                if isinstance(command, Send) and command.bulk:
                    paced += len(command.frame)
                    target.node.upload_done(command.peer)
                elif isinstance(command, Send):
                    sent += len(command.frame)
                    for message in frames.unpack(command.frame):
                        if isinstance(message, ChunkGrant) and command.peer == target.stranger.peer_id:
                            target.grants.append(message.index)
            while (event := target.node.next_event()) is not None:
                if isinstance(event, signals.LedgerWanted):
                    entries = (_ENTRY,) * limits.MAX_LEDGER_ENTRIES_PER_REPLY
                    target.node.order(signals.SendLedger(event.peer, event.from_height, entries), target.now)
    return max(1, asked), sent, paced
