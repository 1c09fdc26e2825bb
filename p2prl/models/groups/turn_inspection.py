"""Inspection of completions of several turns: transcripts are read as the environment continues them.

The claim of a group is its tokens alone: which of them the policy sampled is computed here, for the replay and for
training.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p2prl.models.turns import TurnRules
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.protocol.rollout_group import Completion

Sampled = tuple[tuple[bool, ...], ...]


def inspect_turns(
    turns: TurnRules, completions: Sequence[Completion], token_ids: Sequence[Sequence[int]]
) -> tuple[RejectionReason | str, Sampled]:
    """The first fault of a group's transcripts, empty when there is none; and which tokens the policy sampled.

    The log-probs of an environment's tokens must be 0: no policy gave them, and a slot has one valid group.
    """
    sampled: list[tuple[bool, ...]] = []
    for completion, ids in zip(completions, token_ids, strict=True):
        transcript = turns.read(ids)
        if transcript is None:
            return RejectionReason.BAD_TOKENS, ()
        claimed = np.frombuffer(completion.logprobs, dtype="<f2")
        if np.any(claimed[~np.asarray(transcript.sampled)] != 0):
            return RejectionReason.BAD_TOKENS, ()
        sampled.append(transcript.sampled)
    return "", tuple(sampled)
