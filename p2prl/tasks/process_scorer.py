"""The process scorer interface: scores for the steps of a completion, beside the task's score of its answer.

It replaces a learned process reward model and judges like one: each step by the text before it, never by the text
after it. A true step that adds nothing is still true, so the reward, not the scorer, must limit what repetition earns
(Clip and Delta, `p2prl/algorithms/process_rewards.py`). Pure functions of two texts, like tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

TRUE_STEP = 1.0
"""Process reward of a step that leads to the answer."""

FALSE_STEP = 0.0
"""Process reward of a step that does not."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The scores of one completion."""

    outcome: float = 0.0
    """Plausibility of the whole completion, within 0..1, as seen by a judge that cannot solve the task; of a reward
    model, its logit."""

    steps: tuple[float, ...] = ()
    """One score within 0..1 per step, in order. A stated answer is the last step."""

    ends: tuple[int, ...] = ()
    """For each step, the index of its last character in the completion."""


UNREADABLE = Judgement()
"""The judgement of anything a scorer's grammar does not accept."""


class ProcessScorer(Protocol):
    """A judge of one task's completions."""

    def judge(self, prompt: str, completion: str, finished: bool) -> Judgement:
        """Judge a completion (its text without the stop token) of a prompt of the scorer's task.

        A truncated completion is judged as far as it goes. Must never raise, and take time linear in the text.
        `UNREADABLE` for a prompt the task does not generate.
        """
        ...


def judge_chain(written: Sequence[str], right: Sequence[str]) -> tuple[float, ...]:
    """Score each written link of a chain whose correct links, in order, are `right`.

    A link is true when it is the next one, or repeats the one just reached. A false link takes the next one's position,
    so that later links are judged at theirs; the correct link written after it corrects it, and is true. Past the end
    of the chain only its last link is true.
    """
    reached = 0
    scores = []
    for link in written:
        if reached < len(right) and link == right[reached]:
            reached += 1
            scores.append(TRUE_STEP)
        elif reached > 0 and link == right[reached - 1]:
            scores.append(TRUE_STEP)
        else:
            reached = min(reached + 1, len(right))
            scores.append(FALSE_STEP)
    return tuple(scores)
