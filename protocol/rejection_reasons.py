"""Reasons why a group earned no credit: one code per rule, each with a sentence for the volunteer."""

from __future__ import annotations

from enum import StrEnum


class RejectionReason(StrEnum):
    """Codes in receipts and verdicts. An empty string there means that the group was verified."""

    UNKNOWN_POLICY = "unknown_policy"
    TOO_STALE = "too_stale"
    UNKNOWN_TASK = "unknown_task"
    WRONG_PROMPT = "wrong_prompt"
    WRONG_SIZE = "wrong_size"
    BAD_TOKENS = "bad_tokens"
    DUPLICATE_SLOT = "duplicate_slot"
    SEED_MISMATCH = "seed_mismatch"
    LOGPROB_MISMATCH = "logprob_mismatch"
    ENGINE_MISMATCH = "engine_mismatch"
    WITHHELD_SLOTS = "withheld_slots"
    EXCLUDED = "excluded"

    @property
    def explanation(self) -> str:
        """One sentence that tells the volunteer what happened."""
        return _EXPLANATIONS[self]


FAULTS = frozenset(
    {
        RejectionReason.UNKNOWN_TASK,
        RejectionReason.WRONG_PROMPT,
        RejectionReason.WRONG_SIZE,
        RejectionReason.BAD_TOKENS,
        RejectionReason.SEED_MISMATCH,
        RejectionReason.LOGPROB_MISMATCH,
    }
)
"""Reasons that lie in the work itself. They alone count against a standing, and after them a slot counts as lost: else
a peer would deliver nonsense in place of a group it dislikes. The others befall honest machines, which may be slow, be
started again from an old copy, or round otherwise; or they are the price of something that was counted before."""


def explain(code: str) -> str:
    """The sentence of a code. An unknown code is not repeated: a stranger may have written it."""
    try:
        return RejectionReason(code).explanation
    except ValueError:
        return "A reason that this release does not know."


_EXPLANATIONS = {
    RejectionReason.UNKNOWN_POLICY: "The group names a policy version that the learner never published.",
    RejectionReason.TOO_STALE: "The policy that sampled the group was too old when the learner checked it; "
    "this happens to slow links and is nobody's fault.",
    RejectionReason.UNKNOWN_TASK: "The group's task is not the one that its work slot assigns.",
    RejectionReason.WRONG_PROMPT: "The prompt is not the one that the group's work slot assigns.",
    RejectionReason.WRONG_SIZE: "The group does not have the number of completions that the run requires.",
    RejectionReason.BAD_TOKENS: "A completion contains a token id outside the vocabulary, continues after a stop "
    "token, or has a length that the run does not allow.",
    RejectionReason.DUPLICATE_SLOT: "Another group for the same work slot was verified before.",
    RejectionReason.SEED_MISMATCH: "The tokens are not those that the policy samples with the seeds of the slot.",
    RejectionReason.LOGPROB_MISMATCH: "The tokens are right, but their log-probs are not those of the policy.",
    RejectionReason.ENGINE_MISMATCH: "The numbers of this machine differ from the learner's by more than its engine "
    "class explains, and no validator of its class has confirmed them; this is not treated as cheating.",
    RejectionReason.WITHHELD_SLOTS: "Earlier work slots of this volunteer never arrived; each costs some of the groups "
    "that follow.",
    RejectionReason.EXCLUDED: "Earlier work of this key was forged, as anybody can replay; its work is no longer used.",
}
