"""`p2prl status`: read from the files the roles write, without torch, so that it answers at once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from p2prl.cli.console import emit, say
from p2prl.cli.reading import read_lines, read_status
from p2prl.cli.status_views import worker_lines
from p2prl.config.worker_folder import default_home, holder_of
from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import RunManifest


def status_command(run: Path | None, *, home: Path | None, as_json: bool) -> None:
    """What is running, from the files the roles write."""
    base = home or default_home()
    workers = [_learner(run)] if run is not None else _workers(base)
    if as_json:
        emit({"workers": workers, "time": time.time()})
        return
    if not workers:
        say(f"Nothing has run under {base} yet. Start with:  p2prl join LINK")
    for worker in workers:
        for line in worker_lines(worker, now=time.time()):
            say(line)


def _learner(run: Path) -> dict[str, Any]:
    """A run folder's learner: its status file and the newest line of its metrics."""
    name = _name(run)
    metrics = read_lines(run / "metrics.jsonl")
    status = {**read_status(run / "status.json"), **(metrics[-1] if metrics else {})}
    holder = holder_of(run)
    if holder is not None:  # what it said at its last end is over
        status["state"] = "training" if holder == status.get("pid") else "running, no update since its start"
    return {**status, "run": name, "role": "learner", "running": holder is not None}


def _name(run: Path) -> str:
    """The name in a run folder's manifest."""
    try:
        return body_of(open_envelope((run / "run.manifest").read_bytes(), now=None), RunManifest).name
    except (OSError, RemoteProtocolError) as error:
        raise ConfigError(f"{run} is not a run folder", remedy="Name one that `p2prl init` made.") from error


def _workers(home: Path) -> list[dict[str, Any]]:
    """Every run that a seat under `home` has worked for; the one it works for now is the one its holder wrote."""
    workers = []
    for path in sorted(home.glob("*/*/status.json")):
        seat = path.parent.parent
        status = read_status(path)
        holder = holder_of(seat)
        workers.append({**status, "seat": seat.name, "running": holder is not None and holder == status.get("pid")})
    return workers
