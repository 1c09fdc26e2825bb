"""One run for the tests that start from the first preset's model: its warm start takes half a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl_lab.testing.forked_roles import run_fork
from p2prl_lab.testing.swarm_processes import PATIENCE, SwarmProcesses


@pytest.fixture(scope="session")
def warm_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder that `p2prl init NAME` makes. Copy it: each test starts it for the first time."""
    root = tmp_path_factory.mktemp("warm")
    environment = SwarmProcesses(root).environment()
    made = run_fork(("init", "mine", "--in", str(root)), environment, timeout_s=240 * PATIENCE)
    assert made.returncode == 0, made.stderr
    return root / "mine"
