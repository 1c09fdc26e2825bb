"""Commands: what is sent arrives, and a pipe that ends anywhere ends the commands."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch

from p2prl.learner.training.micro_batches import MicroBatchRule
from p2prl.learner.training.optimizer_config import OptimizerConfig
from p2prl.learner.training.parallel_config import ParallelConfig
from p2prl.learner.training.reference_policy import ReferenceConfig
from p2prl.learner.training.update_engine import EngineSettings
from p2prl.learner.training.value_head import ValueHeadConfig
from p2prl.models.logprobs.policy_forward import Row
from p2prl.protocol.lora_spec import LoraSpec
from p2prl.ranks import commands

ROWS: list[Row] = [(np.array([1, 2, 4_000_000_000], dtype=np.uint32), (7,)), ((0,), [5, 6])]
NUMBERS = torch.tensor([[0.0, -0.0, 1e-45], [torch.inf, torch.nan, -3.5]])
SETTINGS = EngineSettings(
    temperature=0.7,
    optimizer=OptimizerConfig(learning_rate=1e-6),
    precision="bf16",
    value=ValueHeadConfig(clip=0.3),
    reference=ReferenceConfig(ema_rate=0.25),
)
COMMANDS: list[commands.Command] = [
    commands.Load(
        weights="/run/checkpoints/step-10",
        first="/run/model",
        lora=LoraSpec(rank=4, alpha=32.0, targets=("q_proj",)),
        dtype="float32",
        attention="sdpa",
        parallel=ParallelConfig(plan="dp2pp2", zero=3),
        settings=SETTINGS,
    ),
    commands.Score(commands.Rows.of(ROWS), 4096, True),
    commands.Push(commands.Numbers.of(NUMBERS), None),
    commands.Forget(),
    commands.Clip(1.0),
    commands.Step(1e-6, 0.5, 12),
    commands.Gather("bfloat16"),
    commands.GatherGradients(),
    commands.GatherState(),
    commands.Restore("/run/checkpoints/step-10"),
]


def test_commands_arrive_in_order() -> None:
    pipe = io.BytesIO()
    for command in COMMANDS:
        commands.send(pipe, command)
    pipe.seek(0)
    assert [commands.receive(pipe) for _ in COMMANDS] == COMMANDS
    assert commands.receive(pipe) is None


def test_rows_and_numbers_are_those_that_were_sent() -> None:
    rows = commands.Rows.of(ROWS).rows()
    assert [(list(map(int, prompt)), list(map(int, ids))) for prompt, ids in rows] == [
        ([1, 2, 4_000_000_000], [7]),
        ([0], [5, 6]),
    ]
    found = commands.Numbers.of(NUMBERS).tensor()
    assert torch.equal(found.view(torch.int32), NUMBERS.view(torch.int32)), "to the bit"
    assert commands.Score(commands.Rows.of(ROWS), 64, True).rule == MicroBatchRule(tokens=64, checkpointing=True)


@pytest.mark.parametrize("kept", [0, 1, 7, 8, 9, -1])
def test_a_command_cut_off_is_none(kept: int) -> None:
    pipe = io.BytesIO()
    commands.send(pipe, COMMANDS[1])
    assert commands.receive(io.BytesIO(pipe.getvalue()[:kept])) is None
