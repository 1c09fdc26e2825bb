"""`p2prl status`: read from the files the roles write, without torch, so that it answers at once."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from p2prl.cli.console import emit, say
from p2prl.cli.reading import read_lines, read_status
from p2prl.config.home import default_home
from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import RunManifest


def status_command(run: Path | None, *, home: Path | None, as_json: bool) -> None:
    """What is running, from the files the roles write."""
    if run is not None:
        metrics = read_lines(run / "metrics.jsonl")
        status = {**read_status(run / "status.json"), **(metrics[-1] if metrics else {})}
        workers = [{"run": _name(run), "role": "learner", **status}]
    else:
        base = home or default_home()
        workers = [read_status(path) for path in sorted(base.glob("*/*/status.json"))]
    for worker in workers:
        worker["running"] = psutil.pid_exists(int(worker.get("pid", -1)))
    if as_json:
        emit({"workers": workers, "time": time.time()})
        return
    if not workers:
        say("Nothing has run here yet. Start with:  p2prl join LINK")
    for worker in workers:
        state = worker.get("state", "running") if worker["running"] else "not running"
        say(f"{worker.get('role', '?'):<10} {worker.get('run', '?'):<16} {state}")
        for key in ("version", "step", "reward", "groups", "groups_replayed", "peers", "weight_bytes_received"):
            if key in worker:
                say(f"    {key:<22} {worker[key]}")


def _name(run: Path) -> str:
    """The name in a run folder's manifest."""
    try:
        return body_of(open_envelope((run / "run.manifest").read_bytes(), now=None), RunManifest).name
    except (OSError, RemoteProtocolError) as error:
        raise ConfigError(f"{run} is not a run folder", remedy="Name one that `p2prl init` made.") from error
