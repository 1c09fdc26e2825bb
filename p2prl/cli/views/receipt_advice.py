"""Advice on each state and reason of a group: what the contributor can do about it."""

from __future__ import annotations

from collections.abc import Mapping

from p2prl.client.spool import GIVEN_UP, SpoolState
from p2prl.protocol.rejection_reasons import RejectionReason, explain

STATES = {
    SpoolState.GENERATED: (
        "No learner has confirmed that it stored the group.",
        "Keep p2prl join running: the group is sent again while a learner is in reach.",
    ),
    SpoolState.DELIVERED: (
        "The learner has the group on disk and has not judged it yet, or its receipt has not arrived here.",
        "Keep p2prl join running: it asks for missed receipts every few seconds.",
    ),
    SpoolState.VERIFIED: (
        "The learner replayed every token, found it right and credited the group.",
        "Nothing to do.",
    ),
}
"""What a state without a reason means, and what to do."""

_NOT_YOURS = "Nothing to do: it does not count against you."
_REPLAY = "Compare it with a replay on this machine: p2prl receipts replay."
_UPDATE = "Update p2prl to the release the run's learner uses, and start p2prl join again."

_ADVICE = {
    RejectionReason.UNKNOWN_POLICY: "If it happens again, delete the worker's blobs/ folder while it is stopped, and "
    "start p2prl join again.",
    RejectionReason.TOO_STALE: f"{_NOT_YOURS} If most groups end so, this machine is too slow for the run's pace or "
    "its link is: try p2prl join --slots 1.",
    RejectionReason.UNKNOWN_TASK: _UPDATE,
    RejectionReason.WRONG_PROMPT: _UPDATE,
    RejectionReason.WRONG_SIZE: _UPDATE,
    RejectionReason.BAD_TOKENS: _UPDATE,
    RejectionReason.DUPLICATE_SLOT: "Check that no copy of this home folder works elsewhere: each machine needs a key "
    "of its own.",
    RejectionReason.SEED_MISMATCH: f"{_REPLAY} If it fails here too, the memory or the engine of this machine computes "
    "wrong numbers: try p2prl join --engine transformers, or --device cpu.",
    RejectionReason.LOGPROB_MISMATCH: f"{_REPLAY} Another engine may help: p2prl join --engine transformers.",
    RejectionReason.ENGINE_MISMATCH: f"{_NOT_YOURS} A validator of your machine's class would decide for it; "
    "p2prl join --engine transformers is the class most learners know.",
    RejectionReason.WITHHELD_SLOTS: "Let groups reach the learner: stop p2prl join with one Ctrl-C so that it delivers "
    "what it has begun, and keep the worker's folder; the debt ends by itself.",
    RejectionReason.EXCLUDED: "The exclusion ends by itself, after an hour at first. If this machine forged nothing, "
    f"its hardware computes wrong numbers. {_REPLAY}",
}

_ADVICE_HERE = {
    "too_late": f"{_NOT_YOURS} The learner was out of reach for a week.",
    "spool_full": "Give finished work more room: p2prl join --disk-gb.",
    "disk_full": "Free some disk, or give another folder: p2prl join --home.",
    "not_sendable": "Check the disk: the group's bytes have changed since they were signed, or the key has.",
}
assert set(_ADVICE) == set(RejectionReason), "every reason has advice"
assert set(_ADVICE_HERE) == set(GIVEN_UP), "every reason of this machine has advice"


def advice(state: str, reason: str) -> tuple[str, str]:
    """Why a group earned what it earned, in one sentence, and what to do about it. Unknown codes are not repeated."""
    if not reason:
        known = {str(each): texts for each, texts in STATES.items()}
        return known.get(state, ("It earned nothing, and this release does not know why.", _UPDATE))
    if reason in GIVEN_UP:
        return GIVEN_UP[reason], _ADVICE_HERE[reason]
    try:
        return explain(reason), _ADVICE[RejectionReason(reason)]
    except ValueError:
        return explain(reason), _UPDATE


def rejection_lines(reasons: Mapping[str, int]) -> list[str]:
    """A line for each reason, most frequent first. `reasons` counts groups by the code in their receipt or spool."""
    most_first = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return [f"{count:,}: {GIVEN_UP.get(code) or explain(code)}" for code, count in most_first]
