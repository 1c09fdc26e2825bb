"""The table of message kinds, and the structs each of them carries.

Two families. *Link messages* pass between two neighbours and are authenticated by the connection alone. *Signed
messages* travel inside an envelope, may be relayed by anyone and are worth something to a third party. A number is
never used twice: a retired kind stays in `TOMBSTONES`.
"""

from __future__ import annotations

import math
from enum import IntEnum

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.identity import PUBLIC_KEY_BYTES
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.wire_codec import Wire


class Kind(IntEnum):
    """Numbers on the wire. 1–31 are link messages, 32–127 are signed."""

    HELLO = 1
    OFFER = 2
    WANT = 3
    PUSH = 4
    HAVE = 5
    CHUNK_REQUEST = 6
    CHUNK = 7
    CHUNK_REFUSED = 8
    BLOB_QUERY = 9
    LEDGER_QUERY = 10
    LEDGER_PAGE = 11
    LINK_RATES = 12
    CHUNK_GRANT = 13
    GRANT_DECLINED = 14
    CHUNK_CANCEL = 15

    RUN_MANIFEST = 32
    POLICY_MANIFEST = 33
    PEER_RECORD = 34
    ROLLOUT_GROUP = 35
    STORAGE_RECEIPT = 36
    RECEIPTS = 37
    VERDICT = 38
    LEDGER_HEAD = 39
    POLICY_HEAD = 40
    INTRODUCTION = 41


TOMBSTONES: frozenset[int] = frozenset()
"""Kind numbers that were spoken once and must never be given to another message."""


class Role(IntEnum):
    """What a peer is there for. Decides what its neighbours send it unasked."""

    VOLUNTEER = 1
    LEARNER = 2
    VALIDATOR = 3
    BOARD = 4
    SEEDER = 5


# --- link messages ------------------------------------------------------------------------------------------------


class Hello(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """First message on a link, repeated when something in it changes."""

    wire_version: int
    run: bytes
    role: int
    now_ms: int
    """The sender's clock, so that both ends can notice a wrong one."""
    newest_version: int
    """Newest policy version the sender has a manifest of; −1 for none."""
    ledger_height: int
    """Ledger entries the sender holds."""


class Offer(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Digests of envelopes the sender can push."""

    digests: tuple[bytes, ...]


class Want(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Digests of envelopes the sender would like pushed."""

    digests: tuple[bytes, ...]


class Push(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One envelope, as it was signed."""

    envelope: bytes


class BlobQuery(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Which chunks of this blob do you have?"""

    root: bytes


class Have(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Chunks of a blob the sender serves, one bit each, first chunk in the lowest bit of the first byte."""

    root: bytes
    bitmap: bytes


class ChunkRequest(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Please send the chunk of this name."""

    chunk: bytes


class Chunk(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A chunk's bytes; its BLAKE3 is its name, so nothing else needs to be said."""

    data: bytes


class ChunkRefused(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Not now. `retry_ms` = 0 means the sender does not have it."""

    chunk: bytes
    retry_ms: int


class LinkRates(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the sender's link carries, kbit/s; 0 where it does not know. Only orders queues, so a lie buys nothing."""

    upload_kbit_s: int
    download_kbit_s: int


class ChunkGrant(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The receiver may ask for one chunk of a blob: one of these, or, with an empty bitmap, any the sender holds."""

    root: bytes
    bitmap: bytes


class GrantDeclined(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """No use for a grant of this blob. `retry_ms` = 0 means not before the blob is asked about again."""

    root: bytes
    retry_ms: int


class ChunkCancel(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A chunk that was asked for is wanted no more; what is on its way already may still come."""

    chunk: bytes


class LedgerQuery(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Send ledger entries from this height on."""

    from_height: int


class LedgerPage(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Consecutive ledger entries (`protocol/receipts.py`), as bytes that hash to the chain."""

    from_height: int
    entries: tuple[bytes, ...]


# --- signed messages ----------------------------------------------------------------------------------------------


class PeerRecord(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a peer says about itself in the directory. No host name, no location, no hardware."""

    role: int
    addresses: tuple[str, ...]
    newest_version: int

    def check(self) -> None:
        """Raise `RemoteProtocolError` when it holds too much or an unprintable address."""
        if len(self.addresses) > limits.MAX_ADDRESSES:
            raise RemoteProtocolError(f"peer record announces {len(self.addresses)} addresses")
        if any(len(a) > limits.MAX_ADDRESS_CHARS or not a.isprintable() for a in self.addresses):
            raise RemoteProtocolError("peer record holds an unusable address")


class Completion(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One sampled completion.

    `tokens` are little-endian uint32; `logprobs` little-endian float16, one per token, of the policy at the sampling
    temperature; `finished` says the last token is a stop token; `reward` is the volunteer's own scoring, shown to the
    volunteer, recomputed by everyone else and never accepted.
    """

    tokens: bytes
    logprobs: bytes
    finished: bool
    reward: float


class EngineClass(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What computed the tokens: honest numerical noise is calibrated per class, never across classes."""

    engine: str
    version: str
    dtype: str
    device: str


class RolloutGroup(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All completions of one work slot: the unit of work, of credit and of checking."""

    version: int
    policy: bytes
    """Digest of the policy manifest's envelope the weights came from."""
    slot: int
    task: str
    prompt: bytes
    """Prompt token ids, little-endian uint32. Derivable from the slot; sent so that a difference can be named."""
    completions: tuple[Completion, ...]
    engine: EngineClass
    seconds: float
    """Wall seconds spent sampling this slot; cosmetic, feeds measured tokens per second."""
    evidence: bytes = b""
    """Activation fingerprints, when a run asks for them; empty otherwise."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` on anything a decoder above must not have to think about."""
        if not 0 <= self.version < 1 << 48 or not 0 <= self.slot < 1 << 32:
            raise RemoteProtocolError("group: version or slot out of range")
        if len(self.policy) != DIGEST_BYTES or not 0 < len(self.task) <= limits.MAX_NAME_CHARS:
            raise RemoteProtocolError("group: no usable policy digest or task name")
        if not 0 < len(self.prompt) <= 4 * limits.MAX_PROMPT_TOKENS or len(self.prompt) % 4:
            raise RemoteProtocolError("group: the prompt is not a list of token ids")
        if not 0 < len(self.completions) <= limits.MAX_GROUP_SIZE:
            raise RemoteProtocolError(f"group: {len(self.completions)} completions")
        for completion in self.completions:
            size = len(completion.tokens)
            if not 0 < size <= 4 * limits.MAX_COMPLETION_TOKENS or size % 4 or len(completion.logprobs) * 2 != size:
                raise RemoteProtocolError("group: a completion's tokens and log-probs do not match")
            if not math.isfinite(completion.reward):
                raise RemoteProtocolError("group: a reward is not a number")
        for text in (self.engine.engine, self.engine.version, self.engine.dtype, self.engine.device):
            if len(text) > limits.MAX_NAME_CHARS or not text.isprintable():
                raise RemoteProtocolError("group: unusable engine class")
        if not math.isfinite(self.seconds):
            raise RemoteProtocolError("group: seconds is not a number")


class StorageReceipt(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signer has these groups on disk: the volunteer may stop offering them."""

    groups: tuple[bytes, ...]


class State(IntEnum):
    """How a delivered group ended. Every group ends in exactly one of these."""

    VERIFIED = 1
    CREDITED_BY_SAMPLING = 2
    REJECTED = 3
    EXPIRED = 4


class Receipt(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What became of one group."""

    group: bytes
    peer: bytes
    """Public key of the volunteer."""
    version: int
    slot: int
    state: int
    reason: str
    """Empty when verified; else a code of `RejectionReason` that `docs/protocol.md` explains."""
    tokens: int
    """Completion tokens that were verified; credit is linear in it."""
    completions: int
    reward: float
    """Mean recomputed reward of the group."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` on what no learner of this wire version writes; readers print what passes."""
        _check_finding("receipt", self.group, self.peer, self.version, self.reason, self.tokens)
        if not 0 <= self.slot < 1 << 32 or not 0 <= self.completions <= limits.MAX_GROUP_SIZE:
            raise RemoteProtocolError("receipt: slot or completions out of range")
        if self.state not in _STATES:
            raise RemoteProtocolError(f"receipt: unknown state {self.state}")
        if not math.isfinite(self.reward):
            raise RemoteProtocolError("receipt: the reward is not a number")


class Receipts(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A batch of receipts made at one learner step."""

    step: int
    receipts: tuple[Receipt, ...]

    def check(self) -> None:
        """Raise `RemoteProtocolError` when there are too many, or one of them is unusable."""
        if not 0 <= self.step < 1 << 48:
            raise RemoteProtocolError("receipts: step out of range")
        if len(self.receipts) > limits.MAX_RECEIPTS_PER_MESSAGE:
            raise RemoteProtocolError(f"{len(self.receipts)} receipts in one message")
        for receipt in self.receipts:
            receipt.check()


class Verdict(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a validator found when it replayed a group at its declared version."""

    group: bytes
    peer: bytes
    version: int
    passed: bool
    reason: str
    tokens: int
    mismatched: int
    """Tokens whose margin exceeded the class's tolerance."""
    worst_margin: float

    def check(self) -> None:
        """Raise `RemoteProtocolError` on what no validator of this wire version writes; readers print what passes."""
        _check_finding("verdict", self.group, self.peer, self.version, self.reason, self.tokens)
        if self.passed != (not self.reason):
            raise RemoteProtocolError("verdict: a group passes exactly when there is no reason against it")
        if not 0 <= self.mismatched <= self.tokens:
            raise RemoteProtocolError("verdict: more tokens mismatched than were replayed")
        if not math.isfinite(self.worst_margin):
            raise RemoteProtocolError("verdict: the worst margin is not a number")


class LedgerHead(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The learner's signature on its ledger: two heads of one height prove equivocation."""

    height: int
    head: bytes
    step: int
    finished: bool
    """The run is over: no further group will be used."""


class Introduction(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The learner names neighbours to one peer. Advice: whoever has none links at random."""

    peer: bytes
    """Public key of the peer it is meant for."""
    neighbours: tuple[bytes, ...]
    """Public keys of those it should be linked with."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` on what no learner of this wire version writes."""
        if len(self.neighbours) > limits.MAX_INTRODUCED:
            raise RemoteProtocolError(f"introduction to {len(self.neighbours)} peers")
        if any(len(key) != PUBLIC_KEY_BYTES for key in (self.peer, *self.neighbours)):
            raise RemoteProtocolError("introduction: a name is not a public key")


_STATES = frozenset(int(state) for state in State)
_REASONS = frozenset({"", *(str(reason) for reason in RejectionReason)})


def _check_finding(kind: str, group: bytes, peer: bytes, version: int, reason: str, tokens: int) -> None:
    """What receipts and verdicts have in common."""
    if len(group) != DIGEST_BYTES or len(peer) != PUBLIC_KEY_BYTES:
        raise RemoteProtocolError(f"{kind}: no usable group or peer")
    if not 0 <= version < 1 << 48:
        raise RemoteProtocolError(f"{kind}: version out of range")
    if not 0 <= tokens <= limits.MAX_GROUP_SIZE * limits.MAX_COMPLETION_TOKENS:
        raise RemoteProtocolError(f"{kind}: an impossible number of tokens")
    if reason not in _REASONS:
        raise RemoteProtocolError(f"{kind}: unknown reason")


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
}
"""Which struct each link message carries."""
