"""Execution of each command, on every rank alike. Results that only rank 0 needs are dropped elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from p2prl.models.weights.layout import TORCH_DTYPES
from p2prl.ranks import commands
from p2prl.ranks.process_group import RankGroup
from p2prl.ranks.rank import Rank
from p2prl.ranks.sharded_model import Shard


def execute(command: commands.Command, rank: Rank, group: RankGroup) -> Any:
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
            return gather(rank.shards, group, dtype=command.dtype)
        case commands.GatherState():
            return gather_state(rank, group)
        case commands.Restore():
            return rank.restore(Path(command.directory))
        case commands.Load():
            raise AssertionError("a model is loaded before any other command")


def gather(shards: list[Shard], group: RankGroup, *, dtype: str | None) -> dict[str, Tensor]:
    """Whole weights by name, on rank 0's CPU; empty elsewhere. Rounded before they are sent."""
    whole = {}
    for shard in shards:
        local = shard.local if dtype is None else shard.local.to(TORCH_DTYPES[dtype])
        into = None
        if group.rank == 0:
            into = whole[shard.name] = torch.empty(shard.shape, dtype=local.dtype)
        group.gather_rows(local.detach(), into)
    return whole


def gather_state(rank: Rank, group: RankGroup) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
    """The optimizer's state, and the reference policy's weights if there are any, as a checkpoint has them."""
    optimizer: dict[str, Tensor] = {}
    local: Mapping[str, Tensor] = rank.optimizer_tensors()
    for name, tensor in local.items():
        shard = rank.trained[int(name.partition(".")[0])]
        if tensor.shape != shard.local.shape:
            optimizer[name] = tensor  # a number
            continue
        into = None
        if group.rank == 0:
            into = optimizer[name] = torch.empty(shard.shape, dtype=tensor.dtype)
        group.gather_rows(tensor, into)
    if not rank.reference:
        return optimizer, None
    return optimizer, {str(i): tensor for i, tensor in enumerate(gather(rank.reference, group, dtype=None).values())}
