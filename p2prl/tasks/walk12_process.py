"""The process scorer of walk12: which of the steps a completion writes are right."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.tasks.chain4 import ANSWER_MARK, DIGITS
from p2prl.tasks.process_scorer import FALSE_STEP, TRUE_STEP, UNREADABLE, Judgement, judge_chain
from p2prl.tasks.task import MAX_SCORED_CHARS
from p2prl.tasks.walk12 import STEP_CHARS, is_step, parse_prompt, right_steps


@dataclass(frozen=True, slots=True)
class Walk12Process:
    """The steps are those before the mark, judged by `judge_chain`, then the answer.

    Readable is any number of steps, then nothing, the mark, or the mark and one digit; a last step that was cut off is
    left out. The outcome is 1 for a finished completion whose answer repeats its last step's value.
    """

    def judge(self, prompt: str, completion: str, finished: bool) -> Judgement:
        """See `ProcessScorer.judge`. Spaces between symbols are ignored, as the task ignores them."""
        parsed = parse_prompt(prompt)
        if parsed is None or len(completion) > MAX_SCORED_CHARS:
            return UNREADABLE
        places = [index for index, character in enumerate(completion) if character != " "]
        text = completion.replace(" ", "")
        reasoning, mark, answer = text.partition(ANSWER_MARK)
        whole = len(reasoning) // STEP_CHARS * STEP_CHARS
        written = [reasoning[i : i + STEP_CHARS] for i in range(0, whole, STEP_CHARS)]
        broken = whole < len(reasoning) and (bool(mark) or finished)
        if broken or not all(map(is_step, written)) or len(answer) > 1 or (answer and answer not in DIGITS):
            return UNREADABLE
        right = right_steps(*parsed)
        steps = judge_chain(written, right)
        ends = [places[i] for i in range(STEP_CHARS - 1, whole, STEP_CHARS)]
        if answer:
            steps += (TRUE_STEP if answer == right[-1][-1] else FALSE_STEP,)
            ends = [*ends, places[-1]]
        consistent = finished and bool(written and answer) and answer == written[-1][-1]
        return Judgement(outcome=float(consistent), steps=steps, ends=tuple(ends))
