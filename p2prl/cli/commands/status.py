"""`p2prl status`: the workers of this machine, or a run's learner, by the status files that they write."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from p2prl.cli.commands.controls import live_answer
from p2prl.cli.options import AsJson, Home
from p2prl.cli.views.console import emit, say, show
from p2prl.cli.views.status_view import worker_lines
from p2prl.config.worker_folder import default_home, holder_of, read_status
from p2prl.errors import ConfigError, RemoteProtocolError
from p2prl.json_lines import read_json_lines
from p2prl.learner.following.promotion import is_standby
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import RunManifest


def status(
    run: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="A run folder. Default: none, which shows the workers of this machine."),
    ] = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Show what this machine's workers, or a run's learner, are doing."""
    base = home or default_home()
    workers = status_documents(run, base)
    if as_json:
        taken = {} if run is not None else read_status(base / ANY_FILE)
        emit({"workers": workers, "time": time.time(), "any": taken})
        return
    of_any = [] if run is not None else any_lines(read_status(base / ANY_FILE))
    for line in of_any:
        show(line)
    if not workers and not of_any:
        say(f"Nothing has run under {base} yet. Start with:  p2prl join LINK")
    for worker in workers:
        for line in worker_lines(worker, now=time.time()):
            show(line)


ANY_FILE = "any.json"
"""State of `join --any`, below the home."""

_SHOWN_CHANGES = 5


def any_lines(document: dict[str, Any]) -> list[str]:
    """The newest changes of runs by `join --any`; none where it has not run here."""
    changes = document.get("changes")
    if not isinstance(changes, list):
        return []
    newest = [each for each in changes[-_SHOWN_CHANGES:] if isinstance(each, dict)]
    lines = [
        f"    {time.strftime('%a %H:%M', time.localtime(each.get('time', 0)))}  {each.get('text', '')}"
        for each in newest
    ]
    return [f"join --any  {document.get('state', '')}", *lines]


def status_documents(run: Path | None, home: Path) -> list[dict[str, object]]:
    """The learner of `run`, or every worker under `home`."""
    return [_learner(run)] if run is not None else workers_of(home)


def _learner(run: Path) -> dict[str, object]:
    """A run folder's learner: its status file, with what the newest line of its metrics adds.

    The file is written after each update and at the end, so it wins, unless a crash came between the two.
    """
    name, holder = _run_name(run), holder_of(run)
    status = read_status(run / "status.json")
    if is_standby(LearnerPaths(run)):
        return {**status, "run": name, "running": holder is not None}
    lines = read_json_lines(run / "metrics.jsonl").objects
    metrics = lines[-1] if lines else {}
    is_behind = float(metrics.get("step", -1)) > float(status.get("step", -1))
    status = {**status, **metrics} if is_behind else {**metrics, **status}
    if holder is not None:  # the file's state may come from an earlier process
        status["state"] = "training" if holder == status.get("pid") else "running, no update since its start"
    return {**status, "run": name, "role": "learner", "running": holder is not None}


def _run_name(run: Path) -> str:
    """The name in a run folder's manifest."""
    try:
        return body_of(open_envelope((run / "run.manifest").read_bytes(), now=None), RunManifest).name
    except (OSError, RemoteProtocolError) as error:
        raise ConfigError(f"{run} is not a run folder", remedy="Use a folder that `p2prl init` created.") from error


def workers_of(home: Path) -> list[dict[str, object]]:
    """Every run that a worker under `home` has worked for; running if the lock's holder wrote its status file."""
    workers = []
    for path in sorted(home.glob("*/*/status.json")):
        folder = path.parent.parent
        status = read_status(path)
        holder = holder_of(folder)
        worker = {**status, "seat": folder.name, "running": holder is not None and holder == status.get("pid")}
        if worker["running"] and (now := live_answer(folder)) is not None:
            worker["controls"] = now
        workers.append(worker)
    return workers
