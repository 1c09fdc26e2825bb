"""A policy's test in a vLLM engine ends: with its answer, or with an error when the engine never gives one."""

from __future__ import annotations

from typing import cast

import pytest

from p2prl.errors import MachineError
from p2prl.models.engines.vllm.engine import EngineOutput, VllmEngine
from p2prl.models.engines.vllm.policy import _steps_until


class ScriptedEngine:
    """An engine that samples another completion, and answers the ticket 7 in one given step, if in any."""

    context = 16

    def __init__(self, answered_in: int | None) -> None:
        self.steps = 0
        self._answered_in = answered_in

    def step(self) -> list[EngineOutput]:
        self.steps += 1
        answer = [EngineOutput(7, (1,), True)] if self.steps == self._answered_in else []
        return [EngineOutput(3, (self.steps,), False), *answer]


@pytest.mark.parametrize("step", [1, 2, 32])
def test_steps_go_on_up_to_the_answer(step: int) -> None:
    engine = ScriptedEngine(step)
    outputs = _steps_until(7, cast(VllmEngine, engine))
    assert engine.steps == step
    assert [output.token_ids for output in outputs if output.ticket == 3] == [(i + 1,) for i in range(step)]
    assert outputs[-1].ticket == 7


@pytest.mark.parametrize("step", [33, None])
def test_an_engine_that_never_answers_is_an_error_of_the_machine(step: int | None) -> None:
    engine = ScriptedEngine(step)
    with pytest.raises(MachineError, match="32 steps"):
        _steps_until(7, cast(VllmEngine, engine))
    assert engine.steps == 32
