"""The micro-batch rule of every step of a run, kept on disk so that a replay after a crash sums in the same order.

One JSON line for each change, `{"from_step": 0, "tokens": 4096, "checkpointing": false}`, written before the first step
that uses it. The last line at or below a step is that step's rule.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

from p2prl.disk_full import write_error
from p2prl.learner.training.memory_plan import MemoryPlan
from p2prl.learner.training.micro_batches import MicroBatchRule

DEFAULT_RULE = MicroBatchRule(tokens=16_384)
"""Where nothing measures the memory: right for the small models of tests and simulations."""


class MicroBatchLog:
    """Rules by step."""

    def __init__(self, path: Path | None = None) -> None:
        """Without a path the rules live in memory."""
        self._path = path
        self._rules: list[tuple[int, MicroBatchRule]] = _read(path) if path is not None and path.exists() else []

    def at(self, step: int) -> MicroBatchRule:
        """The rule of a step."""
        found = [rule for first, rule in self._rules if first <= step]
        return found[-1] if found else DEFAULT_RULE

    def begin(self, plan: MemoryPlan, *, checkpoint_step: int, completed: int = 0) -> bool:
        """Prepare for the replay of the steps since the newest checkpoint, and for those after the `completed` ones.

        Recorded rules stay, so that it repeats every bit. Only one that no longer fits this machine's memory is
        replaced: the replay then differs in the last bits of a sum, which no peer can see. What the settings ask for
        holds from the first step that was never completed, which may be one that ran out of memory.

        The ranks are those of this start. True if the steps to replay were computed by another plan of them.
        """
        ranks = plan.rule.plan
        moved = bool(self._rules) and {self.at(checkpoint_step).plan, self._rules[-1][1].plan} != {ranks}
        if not self._rules:
            self.change(plan.rule, from_step=0)
        elif not (plan.allows(self.at(checkpoint_step)) and plan.allows(self._rules[-1][1])):
            self.change(plan.rule, from_step=checkpoint_step)
        elif moved:
            self.change(replace(self._rules[-1][1], plan=ranks), from_step=checkpoint_step)
        first_new = max(checkpoint_step, completed)
        if plan.changes(self.at(first_new)):
            self.change(plan.rule, from_step=first_new)
        return moved

    def change(self, rule: MicroBatchRule, *, from_step: int) -> None:
        """Use another rule from this step on. On disk when it returns."""
        self._rules = [(first, old) for first, old in self._rules if first < from_step] + [(from_step, rule)]
        if self._path is None:
            return
        lines = (json.dumps({"from_step": first, **asdict(each)}) for first, each in self._rules)
        new = self._path.with_suffix(".new")
        try:
            with new.open("w") as file:
                file.writelines(f"{line}\n" for line in lines)
                file.flush()
                os.fsync(file.fileno())
            new.rename(self._path)
        except OSError as error:
            raise write_error(error, self._path) from error


def _read(path: Path) -> list[tuple[int, MicroBatchRule]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [(int(each.pop("from_step")), MicroBatchRule(**each)) for each in found]
