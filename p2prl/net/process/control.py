"""What a role's process and its network process say to each other, over a socket pair only they hold.

Both ends are the same program started together, so this is not part of the wire and needs no versions; it is msgpack
behind a length, as elsewhere, so that nothing is ever unpickled.
"""

from __future__ import annotations

import struct

import msgspec

LENGTH = struct.Struct("<I")


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of both directions; tagged by class name."""


# --- to the network process ---------------------------------------------------------------------------------------


class Start(Message, frozen=True, array_like=True, tag=True):
    """First message: who to be and where."""

    key_file: str
    run: bytes
    role: int
    blob_dir: str
    listen: tuple[str, ...]
    bootstrap: tuple[str, ...]
    manifest: bytes
    """The run manifest's envelope when it is known already, else empty."""
    fetch_policies: bool
    keep_versions: int
    rebuilds: bool
    """Whether the role answers `Patched`; otherwise weights are fetched whole."""
    disk_bytes: int
    """Most bytes of weights and patches kept; 0 sets no bound but `keep_versions`."""
    source_patience_s: float
    seed: int
    """Of the node's random choices; drawn by the owner."""
    upload_bytes_s: float = 0.0
    """What chunks may use of the uplink; 0 measures it."""
    download_bytes_s: float = 0.0
    """What the downlink carries; 0 when unknown."""
    monthly_bytes: int = 0
    """Bytes of chunks that may leave in a calendar month; 0 is no limit."""
    awaits_base: bool = False
    """Whether a `Base` follows, and no weights are to be fetched before."""


class Publish(Message, frozen=True, array_like=True, tag=True):
    """Spread an envelope signed with the node's own key."""

    envelope: bytes


class FetchPolicy(Message, frozen=True, array_like=True, tag=True):
    """Fetch one policy by its manifest envelope's digest."""

    policy: bytes


class StartFrom(Message, frozen=True, array_like=True, tag=True):
    """The role has looked for weights to start from: their words lie in the blob directory, under their digest."""

    state: bytes
    """Digest of all the words; empty when there are none."""


class VersionRebuilt(Message, frozen=True, array_like=True, tag=True):
    """The answer to `Patched`: the weights lie at its target, or could not be made."""

    policy: bytes
    ok: bool


class LedgerHeight(Message, frozen=True, array_like=True, tag=True):
    """This many ledger entries can be served."""

    height: int


class QueryLedger(Message, frozen=True, array_like=True, tag=True):
    """Ask the best neighbour for entries from a height on."""

    from_height: int


class SendLedger(Message, frozen=True, array_like=True, tag=True):
    """Answer a `LedgerWanted`."""

    peer: str
    from_height: int
    entries: tuple[bytes, ...]


ToNetwork = Start | Publish | FetchPolicy | StartFrom | VersionRebuilt | LedgerHeight | QueryLedger | SendLedger


# --- from the network process -------------------------------------------------------------------------------------


class NetworkUp(Message, frozen=True, array_like=True, tag=True):
    """The node runs and can be dialled at these addresses."""

    addresses: tuple[str, ...]


class RunKnown(Message, frozen=True, array_like=True, tag=True):
    """The run manifest's envelope arrived and matches the link."""

    manifest: bytes


class FileReady(Message, frozen=True, array_like=True, tag=True):
    """A run file lies at `path`."""

    name: str
    path: str


class VersionAnnounced(Message, frozen=True, array_like=True, tag=True):
    """A newer policy version exists."""

    version: int
    step: int


class VersionReady(Message, frozen=True, array_like=True, tag=True):
    """A policy's weights lie at `path`, verified."""

    digest: bytes
    manifest: bytes
    """The manifest body, msgpack."""
    path: str


class PatchesReady(Message, frozen=True, array_like=True, tag=True):
    """The patches that lead to a policy are here; the role makes its weights of them and answers `Rebuilt`.

    Decoding is the role's: this process must answer its neighbours meanwhile, and stays as light as it is.
    """

    policy: bytes
    state: bytes
    """Digest that all words together must have."""
    size_bytes: int
    dtype: str
    base: str
    """Path of the weights the first patch starts from; empty for a keyframe."""
    patches: tuple[str, ...]
    """Paths of the streams, in the order in which they apply."""
    target: str
    """Where the weights must lie."""


class EnvelopeArrived(Message, frozen=True, array_like=True, tag=True):
    """A verified envelope."""

    envelope: bytes


class LedgerWanted(Message, frozen=True, array_like=True, tag=True):
    """A neighbour asks for ledger entries."""

    peer: str
    from_height: int


class LedgerPage(Message, frozen=True, array_like=True, tag=True):
    """Ledger entries arrived, unchecked."""

    from_height: int
    entries: tuple[bytes, ...]


class Status(Message, frozen=True, array_like=True, tag=True):
    """Sent every few seconds and whenever the neighbourhood changes."""

    peers: tuple[tuple[str, int], ...]
    received_from_source: int
    received_from_peers: int
    sent: int
    wasted: int
    fetching: tuple[int, int, int]
    """(version, chunks held, chunks in all); version −1 when idle."""
    resident_bytes: int
    daemon_bytes: int
    patch_bytes: int = 0
    """Bytes of the patches versions were rebuilt from."""
    whole_bytes: int = 0
    """Bytes of versions that were fetched whole."""
    brought_bytes: int = 0
    """What all versions that came would have cost whole."""
    spared_bytes: int = 0
    """What they would have cost more without the role's own base."""
    upload_bytes_s: float = 0.0
    """What chunks may use of the uplink, set or measured; 0 while unknown."""
    uploaded_bytes_month: int = 0
    """Bytes of chunks this calendar month."""
    budget_spent: bool = False
    """Whether the month's bytes are used up."""


class Warned(Message, frozen=True, array_like=True, tag=True):
    """Something a person should know; the node goes on."""

    message: str
    remedy: str


class Failed(Message, frozen=True, array_like=True, tag=True):
    """The node cannot go on. `error` is a class name of `p2prl.errors`."""

    error: str
    message: str
    remedy: str


FromNetwork = (
    NetworkUp
    | RunKnown
    | FileReady
    | VersionAnnounced
    | VersionReady
    | PatchesReady
    | EnvelopeArrived
    | LedgerWanted
    | LedgerPage
    | Status
    | Warned
    | Failed
)

_encoder = msgspec.msgpack.Encoder()
_to_network: msgspec.msgpack.Decoder[ToNetwork] = msgspec.msgpack.Decoder(ToNetwork)
_from_network: msgspec.msgpack.Decoder[FromNetwork] = msgspec.msgpack.Decoder(FromNetwork)


def pack(message: Message) -> bytes:
    """A message behind its length."""
    body = _encoder.encode(message)
    return LENGTH.pack(len(body)) + body


def parse_to_network(body: bytes) -> ToNetwork:
    """A message for the network process."""
    return _to_network.decode(body)


def parse_from_network(body: bytes) -> FromNetwork:
    """A message from the network process."""
    return _from_network.decode(body)
