"""`p2prl demo`: a whole swarm on this machine, each role a process of its own running the real command line.

Nothing in here takes part in the swarm. It starts `p2prl learn`, `join`, `validate` and `board`, watches the files
they write, and measures the result with a fresh engine at the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rich.console import RenderableType
from rich.table import Table

from p2prl.cli.console import View, emit, progress, say
from p2prl.cli.evaluate import evaluate_checkpoint
from p2prl.cli.plots import plot_run
from p2prl.cli.quantities import fetched_line
from p2prl.cli.reading import read_lines, read_status
from p2prl.config.presets import preset_by_name
from p2prl.config.run_settings import RunFolder, init_run, open_run
from p2prl.errors import MachineError
from p2prl.learner.journal import Journal
from p2prl.learner.run_plan import RunPlan
from p2prl.models.device import use_threads
from p2prl.protocol.identity import peer_id_of
from p2prl.scoreboard.run_folder_source import RunFolderSource
from p2prl.scoreboard.totals import Person

_PROMPTS = 4096
"""Fresh prompts per measurement: a standard error of .007 at a reward of .8."""

_SETTLE_S = 20.0
"""How long workers get to hear the end of the run and leave by themselves."""

_PUBLISH_EVERY = 5
"""Updates between versions: an update takes a tenth of a second here, and a version should reach everybody."""
_LISTEN = "/ip4/127.0.0.1/tcp/0"


@dataclass(slots=True)
class Worker:
    """A role's process and where it writes."""

    name: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    home: Path | None = None

    def status(self) -> dict[str, Any]:
        """What it last said of itself."""
        if self.home is None:
            return {}
        return next((read_status(path) for path in sorted(self.home.glob("*/*/status.json"))), {})


@dataclass(slots=True)
class Swarm:
    """Processes of one demo."""

    folder: Path
    workers: list[Worker] = field(default_factory=list)

    def start(self, name: str, *arguments: str, own_home: bool = False) -> Worker:
        """Start `p2prl ARGUMENTS…`, its output in the run folder's logs."""
        logs = self.folder / "logs"
        logs.mkdir(exist_ok=True)
        log = (logs / f"{name}.log").open("wb")
        home = self.folder / "homes" / name if own_home else None
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "P2PRL_HOME": str(home or self.folder / "homes" / "none")}
        process = subprocess.Popen(
            [sys.executable, "-m", "p2prl", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        worker = Worker(name, process, log, home)
        self.workers.append(worker)
        return worker

    @contextmanager
    def running(self) -> Iterator[Swarm]:
        """Stop every process at the end, however it ends."""
        try:
            yield self
        finally:
            alive = [w for w in self.workers if w.process.poll() is None]
            for worker in alive:
                worker.process.send_signal(signal.SIGINT)
            deadline = time.monotonic() + _SETTLE_S
            for worker in alive:
                try:
                    worker.process.wait(timeout=max(0.1, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    os.killpg(worker.process.pid, signal.SIGKILL)
                    worker.process.wait()
            for worker in self.workers:
                worker.log.close()


def demo_command(*, volunteers: int, cheats: int, updates: int, out: Path | None, seed: int, as_json: bool) -> None:
    """Run the demo and print what came of it."""
    began = time.monotonic()
    use_threads(1)  # a model this small gains nothing from threads that wait for each other on a busy machine
    directory = out or _free_directory(Path("runs"), "demo")
    folder = _make_run(directory, seed, updates, quiet=as_json)
    with progress("measuring the starting point", quiet=as_json) as tell:
        before = evaluate_checkpoint(folder, directory / "model", prompts=_PROMPTS, seed=seed + 1, on_progress=tell)
    swarm = Swarm(directory)
    view = View(quiet=as_json)
    if not as_json:
        say(f"Run folder {directory}; every process logs to {directory / 'logs'}.")
    with swarm.running(), view.shown():
        learner = swarm.start("learner", "learn", str(directory), "--listen", _LISTEN)
        link = _await_link(directory, learner)
        for number in range(1, volunteers + 1):
            swarm.start(
                f"volunteer-{number}", "join", link, "--listen", _LISTEN, "--threads", "1", "--json", own_home=True
            )
        for number in range(1, cheats + 1):
            swarm.start(
                f"cheat-{number}",
                *("join", link, "--listen", _LISTEN, "--threads", "1", "--json", "--adversary", "fabricate"),
                own_home=True,
            )
        validator = ("validate", link, "--listen", _LISTEN, "--threads", "1", "--json")
        swarm.start("validator", *validator, own_home=True)
        swarm.start("board", "board", str(directory), "--port", "0")
        while learner.process.poll() is None:
            metrics = read_lines(directory / "metrics.jsonl")
            view.update(
                lambda metrics=metrics: _panel(swarm, metrics, updates),  # type: ignore[misc]
                lambda metrics=metrics: _line(metrics, updates),  # type: ignore[misc]
            )
            time.sleep(0.5)
        if learner.process.returncode != 0:
            raise MachineError(
                f"the learner ended with status {learner.process.returncode}",
                remedy=f"Its last words are in {directory / 'logs' / 'learner.log'}.",
            )
        _await_workers(swarm)
    folder = open_run(directory)
    with progress("measuring the result", quiet=as_json) as tell:
        after = evaluate_checkpoint(folder, folder.newest_weights(), prompts=_PROMPTS, seed=seed + 1, on_progress=tell)
    document = _summary(swarm, folder, before.reward, after.reward, wall_s=time.monotonic() - began)
    (directory / "summary.json").write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    plot_run(read_lines(directory / "metrics.jsonl"), before.reward, after.reward, directory / "reward.png")
    _print_summary(document, directory)
    if as_json:
        emit(document)


def _make_run(directory: Path, seed: int, updates: int, *, quiet: bool) -> RunFolder:
    preset = preset_by_name("chain4")
    plan = RunPlan(
        name=directory.name,
        goal=preset.goal,
        task=preset.task,
        model=None,
        max_new_tokens=preset.max_new_tokens,
        staleness_bound=preset.staleness_bound,
        publish_every=_PUBLISH_EVERY,
        dtype=preset.dtype,
        compute_dtype=preset.compute_dtype,
        seed=seed,
    )
    with progress("making the model and its flawed warm start", quiet=quiet) as tell:
        return init_run(directory, plan, settings=preset.settings_text(updates=updates), on_progress=tell)


def _free_directory(root: Path, name: str) -> Path:
    """`root/name`, or the first `root/name-2`, `-3`… that does not exist: nothing is ever overwritten."""
    directory, number = root / name, 1
    while directory.exists():
        number += 1
        directory = root / f"{name}-{number}"
    return directory


def _await_link(directory: Path, learner: Worker) -> str:
    path = directory / "link"
    while not path.exists():
        if learner.process.poll() is not None:
            raise MachineError(
                f"the learner ended with status {learner.process.returncode} before it was up",
                remedy=f"Its last words are in {directory / 'logs' / 'learner.log'}.",
            )
        time.sleep(0.1)
    return path.read_text().strip()


def _await_workers(swarm: Swarm) -> None:
    """The learner is done: give the others time to hear it and leave."""
    deadline = time.monotonic() + _SETTLE_S
    for worker in swarm.workers:
        if worker.name != "board":
            try:
                worker.process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue


def _panel(swarm: Swarm, metrics: list[dict[str, Any]], updates: int) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    if metrics:
        last = metrics[-1]
        done = int(last["step"])
        recent = metrics[-10:]
        reward = sum(m["reward"] for m in recent) / len(recent)
        bar = "#" * (30 * done // updates)
        table.add_row(
            "learner", f"[{bar:<30}]".replace("[", "\\[") + f" update {done}/{updates}   policy v{last['version']}"
        )
        table.add_row("reward", f"{reward:.3f} sampled (mean of 10 updates), from {metrics[0]['reward']:.3f}")
        table.add_row("staleness", f"p50 {last['staleness_p50']:.0f}   max {last['staleness_max']:.0f} updates")
    else:
        table.add_row("learner", "waiting for the first groups")
    for worker in swarm.workers:
        status = worker.status()
        if not status:
            continue
        groups = status.get("groups")
        if groups is not None:
            received = status["weight_bytes_received"]
            share = status["weight_bytes_from_peers"] / received if received else 0.0
            verified, rejected = groups.get("verified", 0), groups.get("rejected", 0)
            text = f"v{status['version']:<4} {verified:>4} verified {rejected:>3} rejected"
            text += f"   weights {received / 1e6:5.1f} MB, {share:.0%} from volunteers   {status['state']}"
        else:
            text = (
                f"v{status['version']:<4} {status['groups_replayed']:>4} replayed  {status['verdicts_failed']} failed"
            )
        table.add_row(worker.name, text)
    return table


def _line(metrics: list[dict[str, Any]], updates: int) -> str:
    if not metrics:
        return "waiting for the first groups"
    last = metrics[-1]
    return f"update {last['step']:.0f}/{updates}  reward {last['reward']:.3f}  stale max {last['staleness_max']:.0f}"


def _summary(swarm: Swarm, folder: RunFolder, before: float, after: float, *, wall_s: float) -> dict[str, Any]:
    metrics = read_lines(folder.paths.metrics)
    statuses = [worker.status() for worker in swarm.workers if worker.name.startswith("volunteer")]
    from_learner = sum(status.get("weight_bytes_from_learner", 0) for status in statuses)
    from_peers = sum(status.get("weight_bytes_from_peers", 0) for status in statuses)
    names = {status["peer"]: w.name for w in swarm.workers if "peer" in (status := w.status())}
    people = _contributors(folder)
    staleness = sorted(age for update in metrics for age in update["staleness"])
    return {
        "reward_before": before,
        "reward_after": after,
        "updates": int(metrics[-1]["step"]),
        "versions_published": _versions_published(folder),
        "staleness_p50": staleness[len(staleness) // 2],
        "staleness_p95": staleness[int(0.95 * (len(staleness) - 1))],
        "staleness_max": staleness[-1],
        "weight_bytes_from_volunteers_share": from_peers / max(1, from_peers + from_learner),
        "patch_bytes": sum(status.get("patch_bytes", 0) for status in statuses),
        "whole_bytes": sum(status.get("whole_bytes", 0) for status in statuses),
        "brought_bytes": sum(status.get("brought_bytes", 0) for status in statuses),
        "groups_verified": sum(person.verified_groups for person in people.values()),
        "groups_rejected": sum(person.rejected_groups for person in people.values()),
        "groups_by_contributor": {names.get(peer, peer): person.verified_groups for peer, person in people.items()},
        "network_resident_bytes_max": max((s.get("network_resident_bytes", 0) for s in statuses), default=0),
        "network_daemon_bytes_max": max((s.get("network_daemon_bytes", 0) for s in statuses), default=0),
        "run": str(folder.directory),
        "wall_s": wall_s,
    }


def _versions_published(folder: RunFolder) -> int:
    journal = Journal(folder.paths.journal)
    try:
        return journal.policy_count()
    finally:
        journal.close()


def _contributors(folder: RunFolder) -> dict[str, Person]:
    """The ledger, recounted: contributors by peer id."""
    source = RunFolderSource(folder.paths.journal, folder.manifest_raw)
    try:
        board = source.snapshot().board
        return {peer_id_of(key): person for key, person in board.people.items()} if board is not None else {}
    finally:
        source.close()


def _print_summary(document: dict[str, Any], directory: Path) -> None:
    say("")
    say(f"reward     {document['reward_before']:.3f} -> {document['reward_after']:.3f}  on {_PROMPTS} fresh prompts")
    say(f"updates    {document['updates']}, {document['versions_published']} policy versions published")
    say(
        f"staleness  p50 {document['staleness_p50']:.0f}  p95 {document['staleness_p95']:.0f}"
        f"  max {document['staleness_max']:.0f} updates"
    )
    share = document["weight_bytes_from_volunteers_share"]
    say(f"weights    {share:.0%} of the bytes volunteers received came from other volunteers")
    say(fetched_line(document["patch_bytes"], document["whole_bytes"], document["brought_bytes"]))
    for name, count in document["groups_by_contributor"].items():
        say(f"groups     {name:<14} {count} verified")
    say(f"rejected   {document['groups_rejected']}")
    network, daemon = document["network_resident_bytes_max"], document["network_daemon_bytes_max"]
    say(f"memory     network processes at most {network / 1e6:.0f} MB each, their daemons {daemon / 1e6:.0f} MB")
    say(f"wall       {document['wall_s']:.0f} s")
    say(f"Kept in {directory}: metrics.jsonl, reward.png, summary.json, checkpoints, ledger. p2prl board {directory}")
