"""Introduction of a run to a worker's owner, before any of it is downloaded."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from p2prl.cli.commands.worker_session import introduce_run
from p2prl.config.machine_limits import MachineLimits
from p2prl.errors import ConfigError
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunFile, TaskShare, blob_of
from p2prl.tasks.wasm import runtime
from p2prl_lab.testing.sample_ledgers import manifest


@pytest.mark.parametrize("role", [Role.VOLUNTEER, Role.VALIDATOR])
def test_a_machine_that_interprets_no_modules_is_told_before_it_joins(
    role: Role, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "wasmtime", None)
    runtime.library.cache_clear()
    files = (RunFile("game.wasm", blob_of(b"\0asm", 4096)),)
    run = msgspec.structs.replace(manifest(), files=files, tasks=(TaskShare("game", 1.0),))
    with pytest.raises(ConfigError, match="environments that a run brings need the package 'wasmtime'") as raised:
        introduce_run(run, role, tmp_path, lambda *_: ["about the run"], MachineLimits())
    assert "agents" in raised.value.remedy
    assert "about the run" in capsys.readouterr().err
    introduce_run(run, Role.SEEDER, tmp_path, lambda *_: [], MachineLimits())
    introduce_run(manifest(), role, tmp_path, lambda *_: [], MachineLimits())
    runtime.library.cache_clear()
