"""Execution of each command, on every rank alike. Results that only rank 0 needs are dropped elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from p2prl.ranks import commands
from p2prl.ranks.rank import Rank


def execute(command: commands.Command, rank: Rank) -> Any:
    """Execute a command together with the other ranks, and return its result."""
    match command:
        case commands.Score(reference=True):
            return rank.reference_logprobs(command.rows.rows(), command.rule)
        case commands.Score():
            return rank.score(command.rows.rows(), command.rule)
        case commands.Push():
            return rank.push(command.coefficients.tensor(), command.value_tensor())
        case commands.Forget():
            return rank.forget()
        case commands.Clip():
            return rank.clip(command.most)
        case commands.Step():
            return rank.step(command.learning_rate, value_factor=command.value_factor, number=command.number)
        case commands.Gather():
            return rank.gather(dtype=command.dtype)
        case commands.GatherGradients():
            return rank.gather_gradients()
        case commands.GatherState():
            return rank.gather_state()
        case commands.Restore():
            return rank.restore(Path(command.directory))
        case commands.Load():
            raise AssertionError("a model is loaded before any other command")
