"""The ranks' collectives: torch.distributed behind one adapter.

The ranks of one host meet through files in a folder of this user, and talk over the loopback interface alone: torch's
own launcher listens on every interface, unauthenticated. Only ranks of several hosts meet at its store.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh

from p2prl.learner.training.parallel_config import ParallelConfig

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

MEETING_S = 300.0
"""Time for all ranks to arrive: each has imported torch by then."""

_COLLECTIVE_S = 1800.0
"""Longest collective. A rank that ended is noticed at once; this is for one that hangs."""


def folder_store(folder: Path, ranks: int) -> Store:
    """The meeting of the ranks of one host, in a folder that exists: torch waits for one, and holds the GIL."""
    return dist.FileStore(str(folder / "meeting"), ranks)  # type: ignore[attr-defined]


class RankGroup:
    """The ranks of a learner, of which this process is one."""

    def __init__(self, store: Store, *, interface: str, rank: int, ranks: int) -> None:
        """Wait until all ranks are at `store`. They talk over a network interface of this machine."""
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        store.set_timeout(timedelta(seconds=MEETING_S))
        dist.init_process_group(
            "gloo",
            store=store,
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=_COLLECTIVE_S),
        )
        self.rank = rank
        self.ranks = ranks
        self.device = torch.device("cpu")
        self._meshes: dict[tuple[int, int, int], tuple[DeviceMesh, DeviceMesh]] = {}

    @classmethod
    def on_host(cls, store: Store, *, rank: int, ranks: int) -> RankGroup:
        """Ranks of one host, which talk over the loopback interface."""
        return cls(store, interface=_LOOPBACK, rank=rank, ranks=ranks)

    def mesh(self, parallel: ParallelConfig) -> RankMesh:
        """This rank's place in a plan; every rank must ask for the same plans in one order."""
        assert parallel.ranks == self.ranks
        shape = (parallel.data, parallel.pipeline, parallel.tensor)
        if shape not in self._meshes:
            places, kind = torch.arange(self.ranks), self.device.type
            self._meshes[shape] = (
                DeviceMesh(kind, places.reshape(shape), mesh_dim_names=("data", "pipeline", "tensor")),
                DeviceMesh(kind, places.reshape(parallel.data, -1), mesh_dim_names=("other", "model")),
            )
        return RankMesh(self, *self._meshes[shape])

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, written into `tensor` on each of them."""
        dist.all_reduce(tensor)
        return tensor

    def of_all(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks, stacked; they have one shape."""
        found = [torch.empty_like(tensor) for _ in range(self.ranks)]
        dist.all_gather(found, tensor)
        return torch.stack(found)

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor to a rank that waits for it."""
        dist.send(_bytes(tensor), rank)

    def receive(self, into: Tensor, rank: int) -> None:
        """Wait for a tensor of this type and size, into contiguous memory of the CPU."""
        dist.recv(into.view(torch.uint8), rank)

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


class RankMesh:
    """A plan's ranks as a grid: pipelines of stages of tensor groups.

    Rank = (pipeline number · stages + stage) · ranks of a tensor group + number in it.
    """

    def __init__(self, group: RankGroup, grid: DeviceMesh, models: DeviceMesh) -> None:
        """`models` has a row for each pipeline."""
        self.group = group
        self.device = group.device
        self.data, self.stages, self.tensor = grid.shape
        self.data_index, self.stage, self.tensor_index = grid.get_coordinate() or (0, 0, 0)
        self.data_mesh = grid["data"]
        """Ranks that hold parts of the same weights."""
        self._data = grid.get_group("data")
        self._tensor = grid.get_group("tensor")
        self._model = models.get_group("model")

    @property
    def shares(self) -> int:
        """Ranks that hold a model together, each with its words: those of a pipeline."""
        return self.stages * self.tensor

    @property
    def share(self) -> int:
        """This rank's number among them."""
        return self.stage * self.tensor + self.tensor_index

    @property
    def is_first(self) -> bool:
        """Whether this rank has the first layers."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether this rank has the last layers."""
        return self.stage == self.stages - 1

    def _rank_at(self, stage: int, number: int) -> int:
        """The rank with a number in the tensor group of a stage of this pipeline."""
        return (self.data_index * self.stages + stage) * self.tensor + number

    def add_up_tensor(self, tensor: Tensor) -> Tensor:
        """The sum over this rank's tensor group, in place; of 16-bit numbers in float32, rounded once."""
        if tensor.dtype != torch.float32:
            return tensor.copy_(self.add_up_tensor(tensor.float()))
        if self.tensor > 1:
            dist.all_reduce(tensor, group=self._tensor)
        return tensor

    def add_up_data(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks that have other rows, in place."""
        if self.data > 1:
            dist.all_reduce(tensor, group=self._data)
        return tensor

    def add_up_stages(self, tensor: Tensor) -> Tensor:
        """The sum over the ranks of this pipeline, in place."""
        dist.all_reduce(tensor, group=self._model)
        return tensor

    def add_up_at(self, tensor: Tensor, stage: int) -> Tensor:
        """The same, on one stage; on the others `tensor` is spent."""
        dist.reduce(tensor, self._rank_at(stage, 0), group=self._model)
        if self.tensor > 1 and self.stage == stage:
            dist.broadcast(tensor, self._rank_at(stage, 0), group=self._tensor)
        return tensor

    def from_stage(self, tensor: Tensor, stage: int) -> Tensor:
        """What one stage has in `tensor`, written into that of the others."""
        dist.broadcast(tensor, self._rank_at(stage, 0), group=self._model)
        return tensor

    def of_stages(self, tensor: Tensor) -> Tensor:
        """The tensors of all ranks of this pipeline, stacked; they have one shape."""
        found = [torch.empty_like(tensor) for _ in range(self.shares)]
        dist.all_gather(found, tensor, group=self._model)
        return torch.stack(found)

    def begin_send(self, tensor: Tensor, stage: int) -> Sending:
        """Send a tensor to this rank's like in a stage of this pipeline, without waiting for it."""
        kept = tensor.contiguous()
        work = dist.isend(kept.view(torch.uint8), self._rank_at(stage, self.tensor_index), group=self._model)
        assert work is not None
        return Sending(kept, work)

    def receive(self, into: Tensor, stage: int) -> Tensor:
        """Wait for a tensor of this type and size from a stage of this pipeline."""
        dist.recv(into.view(torch.uint8), self._rank_at(stage, self.tensor_index), group=self._model)
        return into


class Sending:
    """A tensor on its way."""

    def __init__(self, tensor: Tensor, work: dist.Work) -> None:
        self._tensor = tensor  # its memory is read until it has arrived
        self._work = work

    def wait(self) -> None:
        """Return once it has arrived."""
        self._work.wait()


def _bytes(local: Tensor) -> Tensor:
    return local.detach().cpu().contiguous().view(torch.uint8)
