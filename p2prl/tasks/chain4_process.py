"""The process scorer of chain4: which of the running values a completion writes are right."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.chain4 import ANSWER_MARK, DIGITS, running_values
from p2prl.tasks.process_scorer import FALSE_STEP, TRUE_STEP, UNREADABLE, Judgement, judge_chain
from p2prl.tasks.task import MAX_SCORED_CHARS


@dataclass(frozen=True, slots=True)
class Chain4Process:
    """The steps are the digits before the mark, judged by `judge_chain`, then the answer.

    Readable is any number of digits, then nothing, the mark, or the mark and one digit: `747#7`, also cut short. The
    outcome is 1 for a finished completion whose answer repeats its last running value: it looks worked out.
    """

    def judge(self, prompt: str, completion: str, finished: bool) -> Judgement:
        """See `ProcessScorer.judge`. Spaces between symbols are ignored, as the task ignores them."""
        values = running_values(prompt)
        if values is None or len(completion) > MAX_SCORED_CHARS:
            return UNREADABLE
        places = [index for index, character in enumerate(completion) if character != " "]
        text = completion.replace(" ", "")
        written, mark, answer = text.partition(ANSWER_MARK)
        if any(c not in DIGITS for c in written) or len(answer) > 1 or (answer and answer not in DIGITS):
            return UNREADABLE
        steps = judge_chain(written, [str(value) for value in values])
        ends = places[: len(written)]
        if answer:
            steps += (TRUE_STEP if answer == str(values[-1]) else FALSE_STEP,)
            ends = [*ends, places[-1]]
        consistent = finished and bool(mark and written and answer) and answer == written[-1]
        return Judgement(outcome=float(consistent), steps=steps, ends=tuple(ends))
