"""Rollout groups: the completions of one work slot, as a volunteer signs and sends them.

A group travels in one envelope if it fits. Otherwise its encoding, the *body*, is cut into parts, and the volunteer
signs a `GroupHeader` that names them by their hashes: one signature covers everything, and a part needs none.
"""

from __future__ import annotations

import math

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.manifests import BlobRef
from p2prl.protocol.wire_codec import Wire

_TOKEN_BYTES = 4 + 2
"""A token id and its log-prob."""

_COMPLETION_OVERHEAD_BYTES = 32
"""Lengths, reward and flag of one completion, at most."""

_GROUP_OVERHEAD_BYTES = 2_048
"""Every other field: five texts of 64 characters, the policy's digest, numbers."""

_ENVELOPE_OVERHEAD_BYTES = 256
"""What an envelope adds to its body, at most: keys, time, signature."""


def largest_group_bytes(group_size: int, max_new_tokens: int) -> int:
    """Most bytes of an encoded group in a run with these sampling settings, with the longest prompt."""
    completion = _TOKEN_BYTES * max_new_tokens + _COMPLETION_OVERHEAD_BYTES
    return group_size * completion + 4 * limits.MAX_PROMPT_TOKENS + _GROUP_OVERHEAD_BYTES


class Completion(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One sampled completion."""

    tokens: bytes
    """Token ids, little-endian uint32."""
    logprobs: bytes
    """Behavior log-probs at the sampling temperature, little-endian float16, one per token."""
    finished: bool
    """Whether the last token is a stop token."""
    reward: float
    """The volunteer's own score, shown only to the volunteer. Everybody else recomputes it."""


class EngineClass(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Software and hardware that computed the tokens. Tolerances for numerical noise are calibrated per class."""

    engine: str
    version: str
    dtype: str
    """Type it computed in, as torch names it."""
    device: str
    """Name of the GPU, or the device's type and the processor's architecture."""

    def matches(self, other: EngineClass) -> bool:
        """Whether both are one class up to the engine's version: its verdict on a group that another class could not
        explain (`engine_mismatch`) is the one to ask for."""
        return (self.engine, self.dtype, self.device) == (other.engine, other.dtype, other.device)


class RolloutGroup(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """All completions of one work slot: the unit of work, of credit and of verification."""

    version: int
    policy: bytes
    """Envelope digest of the policy manifest whose weights sampled the group."""
    slot: int
    task: str
    prompt: bytes
    """Prompt token ids, little-endian uint32. The slot determines them; they are sent so that a difference shows."""
    completions: tuple[Completion, ...]
    engine: EngineClass
    seconds: float
    """Wall-clock seconds spent on sampling. Display only: it gives the measured tokens per second."""
    evidence: bytes = b""
    """Reserved for activation fingerprints; empty unless a run asks for them."""
    seeds: int = 1
    """The rule of its slot's seeds (`work_slots.SEED_RULE`); 1 in groups of releases that had another."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` for a malformed group, so that later stages need not handle one."""
        _check_slot(self.version, self.policy, self.slot)
        if not 0 < len(self.task) <= limits.MAX_NAME_CHARS:
            raise RemoteProtocolError("group: no usable task name")
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
        tokens = sum(len(completion.tokens) // 4 for completion in self.completions)
        if len(self.evidence) > limits.MAX_EVIDENCE_BYTES_PER_TOKEN * tokens:
            raise RemoteProtocolError(f"group: {len(self.evidence)} bytes of evidence for {tokens} tokens")
        for text in (self.engine.engine, self.engine.version, self.engine.dtype, self.engine.device):
            if len(text) > limits.MAX_NAME_CHARS or not text.isprintable():
                raise RemoteProtocolError("group: unusable engine class")
        if not math.isfinite(self.seconds):
            raise RemoteProtocolError("group: seconds is not a number")


class GroupHeader(Wire, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A rollout group whose encoding does not fit an envelope: its slot, and its body by the hashes of its parts."""

    version: int
    policy: bytes
    """As in the group, so that a receiver can refuse it before it requests a single part."""
    slot: int
    body: BlobRef
    """The encoded `RolloutGroup`, in parts of `limits.GROUP_PART_BYTES`."""

    def check(self) -> None:
        """Raise `RemoteProtocolError` for a malformed header."""
        _check_slot(self.version, self.policy, self.slot)
        self.body.check(max_bytes=limits.MAX_GROUP_BYTES)
        if self.body.chunk_bytes != limits.GROUP_PART_BYTES:
            raise RemoteProtocolError(f"group header: parts of {self.body.chunk_bytes} bytes")
        # Else one group could be sent in two forms, and a few bytes of parts would cost more than they hold.
        if self.body.size_bytes <= limits.MAX_ENVELOPE_BYTES - _ENVELOPE_OVERHEAD_BYTES:
            raise RemoteProtocolError(f"group header: {self.body.size_bytes} bytes fit an envelope")


def check_group_size(group: RolloutGroup | GroupHeader, *, envelope_bytes: int, most: int) -> None:
    """Raise `RemoteProtocolError` for a group of more than `most` bytes encoded: its run allows none that large."""
    size = group.body.size_bytes if isinstance(group, GroupHeader) else envelope_bytes - _ENVELOPE_OVERHEAD_BYTES
    if size > most:
        raise RemoteProtocolError(f"group of {size} bytes; the run's sampling settings allow {most}")


def _check_slot(version: int, policy: bytes, slot: int) -> None:
    if not 0 <= version < 1 << 48 or not 0 <= slot < 1 << 32:
        raise RemoteProtocolError("group: version or slot out of range")
    if len(policy) != DIGEST_BYTES:
        raise RemoteProtocolError("group: no usable policy digest")
