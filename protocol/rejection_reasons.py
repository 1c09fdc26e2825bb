"""Why a group earned nothing. One code per rule, so that a volunteer can be told exactly what to look at."""

from __future__ import annotations

from enum import StrEnum


class RejectionReason(StrEnum):
    """Codes carried by receipts and verdicts. Empty means verified."""

    UNKNOWN_POLICY = "unknown_policy"
    """Names a version or manifest the learner never published."""
    TOO_STALE = "too_stale"
    """Sampled with a policy more than the staleness bound behind: expired, nobody's fault."""
    UNKNOWN_TASK = "unknown_task"
    """Another task than the slot's."""
    WRONG_PROMPT = "wrong_prompt"
    """Prompt tokens differ from the slot's."""
    WRONG_SIZE = "wrong_size"
    """Not exactly G completions."""
    BAD_TOKENS = "bad_tokens"
    """A token outside the vocabulary, a stop token inside, or a length no sampler of this run produces."""
    DUPLICATE_SLOT = "duplicate_slot"
    """Another group of this slot was verified already."""
    SEED_MISMATCH = "seed_mismatch"
    """Tokens are not what the slot's seeds give under the declared policy."""
    LOGPROB_MISMATCH = "logprob_mismatch"
    """Tokens replay, but the claimed log-probs are not the policy's."""
