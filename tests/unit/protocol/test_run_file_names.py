"""Modules among a run's files: each belongs to a task that its seeds make, and its name is a safe one."""

from __future__ import annotations

import msgspec
import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import limits
from p2prl.protocol.identity import Identity
from p2prl.protocol.manifests import BlobRef, DataSet, RunFile, RunManifest, TaskShare
from p2prl.protocol.run_file_names import module_name, task_of_module
from p2prl.sim.bare_manifest import run_manifest_of

CONFIG = RunFile("config.json", BlobRef(100, 4096, bytes(32)))


def with_module(task: str = "game", size: int = 1, *, name: str = "", of_data: bool = False) -> RunManifest:
    """A run of two tasks, one of which has a module among the files."""
    blob = BlobRef(size, 4 * 1024 * 1024, bytes(32))
    data = DataSet(task, 1, BlobRef(36, 4096, bytes(32)), BlobRef(64, 4096, bytes(32)), "{}")
    return msgspec.structs.replace(
        run_manifest_of(Identity(bytes(16))),
        files=(CONFIG, RunFile(name or module_name(task), blob)),
        tasks=(TaskShare("chain4", 1.0), TaskShare(task, 1.0)),
        data_sets=(data,) if of_data else (),
    )


@pytest.mark.parametrize("task", ["game", "Game-2.0_b", "7", "a.wasm"])
def test_a_module_belongs_to_a_task_of_the_mix(task: str) -> None:
    run = with_module(task, limits.MAX_MODULE_BYTES)
    run.check()
    assert run.modules == {task: run.files[1]}
    assert task_of_module(module_name(task)) == task
    assert run_manifest_of(Identity(bytes(16))).modules == {}


@pytest.mark.parametrize(
    "run",
    [
        with_module(size=limits.MAX_MODULE_BYTES + 1),
        with_module(size=0),
        with_module(name="other.wasm"),
        with_module(name="game.WASM"),
        with_module("../game"),
        with_module(".game"),
        with_module("a/b"),
        with_module("a b"),
        with_module("g\u00e4me"),
        with_module("\u0663"),
        with_module(of_data=True),
    ],
)
def test_any_other_is_refused(run: RunManifest) -> None:
    with pytest.raises(RemoteProtocolError):
        run.check()
