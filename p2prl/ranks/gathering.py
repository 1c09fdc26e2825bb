"""Weights and optimizer state of all ranks, gathered on rank 0 in the order of one process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from p2prl.models.weights.layout import TORCH_DTYPES
from p2prl.ranks.process_group import RankGroup
from p2prl.ranks.sharded_model import Shard, WholeWeight


class Gathering:
    """What each rank holds, known to all of them."""

    def __init__(self, weights: Sequence[WholeWeight], shards: Sequence[Shard], group: RankGroup) -> None:
        """`weights` are those of the whole model; `shards` are this rank's part of them."""
        self._group = group
        self._weights = {each.name: each for each in weights}
        held = torch.zeros(len(weights), 3, dtype=torch.long)  # first row, number of rows, whether they are columns
        for shard in shards:
            if shard.counts:
                found = [shard.start, shard.local.shape[0], int(shard.by_columns)]
                held[list(self._weights).index(shard.name)] = torch.tensor(found)
        self._rows = dict(zip(self._weights, group.of_all(held).unbind(dim=1), strict=True))

    def weights(self, shards: Sequence[Shard], *, dtype: str | None = None) -> dict[str, Tensor]:
        """Whole weights by name, on rank 0's CPU; empty elsewhere. Rounded to `dtype` before they are sent."""
        local = {shard.name: shard.local.detach() for shard in shards}
        if dtype is not None:
            local = {name: tensor.to(TORCH_DTYPES[dtype]) for name, tensor in local.items()}
        return self._whole(local, None if dtype is None else TORCH_DTYPES[dtype])

    def gradients(self, shards: Sequence[Shard]) -> dict[str, Tensor]:
        """The gradient of trained weights by name, on rank 0's CPU; empty elsewhere."""
        local = {shard.name: shard.local.grad for shard in shards if shard.local.grad is not None}
        return self._whole(local, names=[each.name for each in self._weights.values() if each.trained])

    def trained(self, shards: Sequence[Shard]) -> dict[str, Tensor]:
        """Whole weights of those that are trained, by their number; `shards` are this rank's part."""
        local = {shard.name: shard.local.detach() for shard in shards}
        found = self._whole(local, names=[each.name for each in self._weights.values() if each.trained])
        return {str(number): tensor for number, tensor in enumerate(found.values())}

    def state(self, local: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The optimizer's state as a checkpoint has it. `local` is this rank's, by the weight's number and the state's
        name: every weight has the same states, and every rank has a weight."""
        trained = [each.name for each in self._weights.values() if each.trained]
        example = next(iter(local.values()), {})
        found: dict[str, Tensor] = {}
        for number, weight in enumerate(trained):
            for name, like in example.items():
                key, mine = f"{number}.{name}", local.get(str(number), {})
                if like.dim() == 0:
                    found[key] = like.clone()  # a number, of all weights alike
                    continue
                rows = {weight: mine[name]} if name in mine else {}
                gathered = self._whole(rows, like.dtype, names=[weight])
                if weight in gathered:
                    found[key] = gathered[weight]
        return found

    def _whole(
        self, local: Mapping[str, Tensor], dtype: torch.dtype | None = None, *, names: Sequence[str] | None = None
    ) -> dict[str, Tensor]:
        return {
            name: whole
            for name in (self._weights if names is None else names)
            if (whole := self._gather(name, local.get(name), dtype)) is not None
        }

    def _gather(self, name: str, local: Tensor | None, dtype: torch.dtype | None) -> Tensor | None:
        """One weight's rows from every rank that has some; None but on rank 0."""
        group = self._group
        rows_of_ranks = self._rows[name].tolist()
        if group.rank:
            if local is not None and rows_of_ranks[group.rank][1]:
                group.send(local, 0)
            return None
        weight = self._weights[name]
        whole = torch.empty(weight.shape, dtype=weight.dtype if dtype is None else dtype)
        for rank, (start, rows, by_columns) in enumerate(rows_of_ranks):
            part = whole[:, start : start + rows].T if by_columns else whole[start : start + rows]
            if rank == 0 and local is not None:
                part.copy_(local)
            elif rows:
                into = part if part.is_contiguous() else torch.empty(part.shape, dtype=part.dtype)
                group.receive(into, rank)
                if into is not part:
                    part.copy_(into)
        return whole
