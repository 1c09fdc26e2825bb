"""A run folder for tests of interruptions: work that was done while cut off is stale by design, and still used."""

from __future__ import annotations

import shutil
from pathlib import Path

from p2prl_lab.testing.swarm_processes import SwarmProcesses, command

_INIT_S = 600.0


def make_run(swarm: SwarmProcesses, *, warm: Path | None = None, dead_band_ulp: int = 0, patience: float = 1.0) -> Path:
    """Make `run` in the swarm's folder. Its staleness bound exceeds the run's length.

    `warm` is a run folder of `p2prl init NAME` whose model to start from: the preset's warm start takes half a minute.
    """
    options = ["--staleness", "1024", "--publish-every", "5", "--seed", "0"]
    if warm is not None:
        options += ["--preset", "chain4", "--model", str(warm / "model"), "--probe", "off"]
    swarm.folder.mkdir(parents=True, exist_ok=True)
    made = command(
        "init", "run", "--in", str(swarm.folder), *options,
        environment=swarm.environment(), timeout_s=_INIT_S * patience,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    run = swarm.folder / "run"
    if warm is not None:
        shutil.copyfile(warm / "run.toml", run / "run.toml")
    settings, line = (run / "run.toml").read_text(), "dead_band_ulp = 0 "
    assert line in settings, "the preset sets no dead band to change"
    (run / "run.toml").write_text(settings.replace(line, f"dead_band_ulp = {dead_band_ulp} "))
    return run
