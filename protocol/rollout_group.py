"""Rollout groups: the completions of one work slot, as a volunteer signs and sends them."""

from __future__ import annotations

import math

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.digests import DIGEST_BYTES
from p2prl.protocol.wire_codec import Wire


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
    device: str


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

    def check(self) -> None:
        """Raise `RemoteProtocolError` for a malformed group, so that later stages need not handle one."""
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
