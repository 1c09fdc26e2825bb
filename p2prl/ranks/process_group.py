"""The ranks' collectives: torch.distributed behind one adapter.

The ranks meet through files in a folder of this user, and talk over the loopback interface alone: torch's own launcher
listens on every interface, unauthenticated.
"""

from __future__ import annotations

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"

_MEETING_S = 300.0
"""Time for all ranks to arrive: each has imported torch by then."""

_COLLECTIVE_S = 1800.0
"""Longest collective. A rank that ended is noticed at once; this is for one that hangs."""


class RankGroup:
    """The ranks of a plan, of which this process is one."""

    def __init__(self, folder: Path, *, rank: int, ranks: int) -> None:
        """Wait until all ranks are here."""
        os.environ["GLOO_SOCKET_IFNAME"] = _LOOPBACK
        store = dist.FileStore(str(folder / "meeting"), ranks)  # type: ignore[attr-defined]
        store.set_timeout(timedelta(seconds=_MEETING_S))
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
        self.mesh = DeviceMesh(self.device.type, list(range(ranks)), mesh_dim_names=("data",))

    def add_up(self, tensor: Tensor) -> Tensor:
        """The sum over ranks, written into `tensor` on each of them."""
        dist.all_reduce(tensor)
        return tensor

    def gather_rows(self, local: Tensor, into: Tensor | None) -> None:
        """Write the rows of every rank one after the other into rank 0's CPU tensor.

        Ranks hold equal numbers of rows, as `torch.chunk` deals them, so the last ones may lack some. `into` is None on
        the others.
        """
        if into is None:
            assert self.rank
            if local.shape[0]:
                dist.send(_bytes(local), 0)
            return
        each = -(-into.shape[0] // self.ranks)
        into[: local.shape[0]].copy_(local)
        for rank in range(1, self.ranks):
            part = into[rank * each : (rank + 1) * each]
            if part.shape[0]:
                dist.recv(part.view(torch.uint8), rank)

    def close(self) -> None:
        """Leave the group."""
        dist.destroy_process_group()


def _bytes(local: Tensor) -> Tensor:
    return local.detach().cpu().contiguous().view(torch.uint8)
