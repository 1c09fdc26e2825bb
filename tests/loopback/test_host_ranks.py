"""Ranks as torchrun starts them on several hosts: they train as one process, and the loss of one is told at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from p2prl.errors import ProcessLostError
from p2prl.learner.training.update_engine import EngineSettings
from p2prl.models.base_model.local_base import load_policy
from p2prl.ranks import commands
from p2prl.ranks.sharded_engine import ShardedEngine
from p2prl.ranks.torchrun_hosts import HostRanks
from tests.loopback.rank_rig import CPU, TWO_RANKS, assert_close, batch_of, pipeline, saved, single, trainer_of, weights
from tests.unit.models.small_decoders import qwen2

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(600)]

FOLLOW = "import sys; from p2prl.ranks.torchrun_hosts import follow_host; sys.exit(follow_host(rank=1, ranks=2))"


def test_two_hosts_train_as_one_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    launch = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    for name, value in {**launch, "RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    model = qwen2()
    directory = saved(model, tmp_path / "model")
    other = subprocess.Popen([sys.executable, "-c", FOLLOW], env={**os.environ, **launch, "RANK": "1"})
    try:
        ranks = HostRanks(2)

        def engine(loaded: object, settings: EngineSettings) -> ShardedEngine:
            load = commands.Load(
                weights=str(directory),
                first=str(directory),
                lora=None,
                dtype="float32",
                attention="sdpa",
                parallel=TWO_RANKS,
                settings=settings,
            )
            return ShardedEngine(loaded, ranks, load)

        loaded = load_policy(directory, directory, None, device=CPU, dtype="float32").model
        one, two = single(directory, pipeline()), trainer_of(loaded, pipeline(), engine=engine)
        for seed in range(2):
            one.update(batch_of(seed, model))
            two.update(batch_of(seed, model))
        assert_close(weights(two, model), weights(one, model), updates=2)
        assert np.isfinite(weights(two, model)).all()
        ranks.check()
        other.kill()
        other.wait()
        with pytest.raises(ProcessLostError, match="rank 1 of the learner is gone"):
            ranks.lost()
        with pytest.raises(ProcessLostError, match="is gone"):
            two.update(batch_of(2, model))
        ranks.group.close()
        ranks.close()
    finally:
        other.kill()
        other.wait()
        torch.set_num_threads(threads)
