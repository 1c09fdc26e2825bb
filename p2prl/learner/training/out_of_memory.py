"""Compute a gradient again in smaller micro-batches when memory runs out.

The attempt that failed leaves nothing behind, and the smaller micro-batches hold for all later updates: a learner that
replays its journal computes as this one did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from p2prl.errors import MachineError
from p2prl.learner.training.micro_batch_log import MicroBatchLog
from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.models.hardware.failures import is_out_of_memory, release_memory

LESS_MEMORY = (
    'Set checkpointing = "on" in [learner.memory] of run.toml, free some memory, or train on a larger device; the run'
    " resumes before this update."
)
"""Remedy when no smaller micro-batch helps."""

Result = TypeVar("Result")


def with_smaller_micro_batches(
    compute: Callable[[MicroBatchRule], Result],
    forget: Callable[[], None],
    rules: MicroBatchLog,
    *,
    step: int,
    longest: int,
    rows: int,
    notices: list[str] | None,
) -> Result:
    """`compute` by the rule of a step, and again with half the tokens in a micro-batch as long as memory runs out.

    `forget` undoes a failed attempt. `longest` is the longest of the batch's `rows` completions with its prompt,
    tokens: a micro-batch holds it whole, so `MachineError` when even that is too much. `notices` gets messages for the
    user.
    """
    while True:
        rule = rules.at(step)
        try:
            return compute(rule)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if rule.tokens <= longest:
                raise MachineError(
                    f"memory ran out at update {step} with a single completion", remedy=LESS_MEMORY
                ) from error
        # Outside of the handler, whose traceback holds the tensors of the failed attempt.
        forget()
        release_memory()
        rule = rule.halved(used=longest * rows)
        rules.change(rule, from_step=step)
        if notices is not None:
            notices.append(f"memory ran out; micro-batches have up to {rule.tokens:,} tokens from now on")
