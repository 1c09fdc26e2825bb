"""What a process scorer is: a judge of the steps of a completion, beside the task that judges its answer.

It stands where others put a process reward model and judges as one does: each step by what stands before it, and by
nothing after. A true step that brings nothing new is true. What repetition may earn is therefore not the scorer's to
bound but the reward's (Clip and Delta, `p2prl/algorithms/reward_shaping.py`). Pure functions of two texts, as tasks
are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

TRUE_STEP, FALSE_STEP = 1.0, 0.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a scorer says of one completion."""

    outcome: float = 0.0
    """How well the completion as a whole looks, within 0..1, to a judge that cannot work the task itself."""

    steps: tuple[float, ...] = ()
    """One score within 0..1 a step, in order. A completion that states an answer has it as its last step."""

    ends: tuple[int, ...] = ()
    """For each step, the index of its last character in the completion."""


UNREADABLE = Judgement()
"""The judgement of anything a scorer's grammar does not accept."""


class ProcessScorer(Protocol):
    """A judge of one task's completions."""

    def judge(self, prompt: str, completion: str, finished: bool) -> Judgement:
        """Judge a completion (its text without the stop token) of a prompt of the scorer's task.

        A completion that was cut off is judged as far as it goes. Raises on no text whatever, and takes time linear in
        it; `UNREADABLE` for a prompt the task does not make.
        """
        ...


def judge_chain(written: Sequence[str], right: Sequence[str]) -> tuple[float, ...]:
    """Score each written link of a chain whose links in order are `right`.

    True: the next link, or once more the one just reached. A false link stands in the place of the next one, so that
    what follows it is judged at its own place; the right link after it corrects it, and is true. Past the end of the
    chain only its last link is true.
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
