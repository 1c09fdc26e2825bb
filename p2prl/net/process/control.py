"""Control messages between a role's process and its network process, over a socket pair only the two of them hold.

Both ends are the same program started together, so this is not part of the wire and needs no versions. It is
length-prefixed msgpack, so that nothing is ever unpickled. Most messages are the signals of a node
(`p2prl.swarm.signals`), as they are; here are those of the process around it, and reports that name a file.
"""

from __future__ import annotations

import struct
from pathlib import Path

import msgspec

from p2prl.net.process.network_config import NetworkConfig
from p2prl.protocol import limits
from p2prl.protocol.manifests import BlobRef, PolicyManifest
from p2prl.protocol.wire_codec import decode
from p2prl.swarm.signals import NodeOrder, NodeReport, Signal

LENGTH = struct.Struct("<I")


# --- to the network process ---------------------------------------------------------------------------------------


class Start(Signal, frozen=True, array_like=True, tag=True):
    """First message: the settings of the node and its process."""

    config: NetworkConfig
    seed: int
    """Seed of the node's random choices; drawn by the role."""


class SetUploadCaps(Signal, frozen=True, array_like=True, tag=True):
    """The owner has changed what may be uploaded."""

    bytes_s: float
    """For chunks; 0 measures the uplink."""
    monthly_bytes: int
    """Per calendar month; 0 is no limit."""


ProcessOrder = Start | SetUploadCaps
"""For the process around the node."""

ToNetwork = ProcessOrder | NodeOrder


# --- from the network process -------------------------------------------------------------------------------------


class NetworkUp(Signal, frozen=True, array_like=True, tag=True):
    """The node runs and can be dialed at these addresses."""

    addresses: tuple[str, ...]


class RunKnown(Signal, frozen=True, array_like=True, tag=True):
    """The run manifest's envelope arrived and matches the join link."""

    manifest: bytes


class FileReady(Signal, frozen=True, array_like=True, tag=True):
    """A run file is at `path`, verified."""

    name: str
    path: str


class VersionReady(Signal, frozen=True, array_like=True, tag=True):
    """A policy's weights are on disk, verified."""

    digest: bytes
    """Of the policy manifest's envelope."""
    manifest: bytes
    """The manifest's body, msgpack."""
    path: str
    """For `p2prl.net.storage.held_weights`."""

    @property
    def policy(self) -> PolicyManifest:
        """The manifest."""
        return decode(self.manifest, PolicyManifest, limit_bytes=limits.MAX_ENVELOPE_BYTES)


class PatchesReady(Signal, frozen=True, array_like=True, tag=True):
    """The patches of a policy version are on disk; the role decodes them and answers `VersionRebuilt`.

    Decoding is the role's job: the network process must answer its neighbors meanwhile, and stay small.
    """

    digest: bytes
    """Of the policy manifest's envelope."""
    version: int
    weights: BlobRef
    """The weights that the patches lead to."""
    weights_digest: bytes
    """Digest of all of them."""
    dtype: str
    base_version: int
    """Version the first patch applies to; `NO_BASE` for a keyframe or the owner's local base."""
    base: bytes
    """Root of the weights the first patch applies to, or the local base's digest; empty for a keyframe."""
    patches: tuple[bytes, ...]
    """Roots of the patches, in the order in which they apply."""
    held: tuple[bytes, ...]
    """Roots of the weights that the node holds, as in `WeightsReleased`."""
    folder: str
    """Where the blobs are."""


class WeightsReleased(Signal, frozen=True, array_like=True, tag=True):
    """The node holds these weights and no others: the role may forget the rest."""

    held: tuple[bytes, ...]
    """Roots."""
    folder: str
    """Where the blobs are."""


class EnvelopeArrived(Signal, frozen=True, array_like=True, tag=True):
    """A verified envelope."""

    envelope: bytes


class GroupFetched(Signal, frozen=True, array_like=True, tag=True):
    """The body of the group with this header is at `path`, verified part by part. Answer with `ReleaseGroup`."""

    envelope: bytes
    path: str


class Status(Signal, frozen=True, array_like=True, tag=True):
    """Peers, traffic and memory of the node; sent every two seconds and whenever the links change.

    Each figure is a field, because every role shows some of them.
    """

    peers: tuple[tuple[str, int], ...]
    """Links by the peers' role names."""
    received_from_source: int
    """Weight bytes from the learner."""
    received_from_peers: int
    """Weight bytes from everybody else."""
    sent: int
    """Weight bytes sent."""
    wasted: int
    """Weight bytes that arrived twice or unrequested."""
    fetching: tuple[int, int, int]
    """(version, chunks held, chunks in all) of the newest download; version −1 when idle."""
    resident_bytes: int
    """Memory of the network process."""
    daemon_bytes: int
    """Memory of its children: the transport's daemon."""
    patch_bytes: int = 0
    """Bytes of the patches that versions were decoded from."""
    full_bytes: int = 0
    """Bytes of versions downloaded as full weights."""
    version_bytes: int = 0
    """Size of all downloaded versions as full weights."""
    saved_bytes: int = 0
    """Bytes saved by the local base model."""
    upload_bytes_s: float = 0.0
    """Upload rate for chunks, set or measured; 0 while unknown."""
    uploaded_bytes_month: int = 0
    """Bytes of chunks uploaded this calendar month."""
    budget_spent: bool = False
    """Whether the monthly upload limit is reached."""
    received_over_circuits: int = 0
    """Weight bytes, of both kinds, that passed a circuit: a third peer sent them on."""
    files: tuple[int, int] = (0, 0)
    """(bytes held, bytes in all) of the run's files and data."""
    addresses: tuple[str, ...] = ()
    """Where others may dial this peer now: they change as routers and relays do."""
    link_peers: tuple[str, ...] = ()
    """Addresses of the listed peers that a join link should name beside the learner; of learners and boards."""
    reach: str = ""
    """How others reach this peer: a value of `p2prl.swarm.peers.reachability.Reach`."""
    other_runs: int = 0
    """Peers that answered for another run than ours."""
    knows_run: bool = True
    """False where peers of the join link were reached, and none of them knows a peer of this run."""


class Warned(Signal, frozen=True, array_like=True, tag=True):
    """Something the user should know; the node continues."""

    message: str
    remedy: str

    @property
    def text(self) -> str:
        """Both as sentences."""
        return f"{self.message}. {self.remedy}".strip()


class Failed(Signal, frozen=True, array_like=True, tag=True):
    """The node cannot continue. `error` is a class name of `p2prl.errors`."""

    error: str
    message: str
    remedy: str


class Logged(Signal, frozen=True, array_like=True, tag=True):
    """A line of the process's log: the role prints it, whose terminal may hold a panel."""

    line: str


RunReport = NetworkUp | RunKnown | FileReady | VersionReady | PatchesReady | WeightsReleased
FromNetwork = RunReport | EnvelopeArrived | GroupFetched | NodeReport | Status | Warned | Logged | Failed


def _encode_path(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"{type(value).__name__} cannot be sent in a control message")


def _decode_path(kind: type, value: str) -> Path:
    assert kind is Path
    return Path(value)


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_path)
_to_network: msgspec.msgpack.Decoder[ToNetwork] = msgspec.msgpack.Decoder(ToNetwork, dec_hook=_decode_path)
_from_network: msgspec.msgpack.Decoder[FromNetwork] = msgspec.msgpack.Decoder(FromNetwork)


def pack(message: Signal) -> bytes:
    """Encode a message with its length prefix."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def parse_to_network(body: bytes) -> ToNetwork:
    """Decode a message for the network process."""
    return _to_network.decode(body)


def parse_from_network(body: bytes) -> FromNetwork:
    """Decode a message from the network process."""
    return _from_network.decode(body)
