"""`p2prl demo`: make a run, start a whole swarm on this machine, show its files, and measure the result."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table

from p2prl.cli.commands.demo_processes import DemoProcesses
from p2prl.cli.options import AsJson, Seed
from p2prl.cli.views.console import LiveView, emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.cli.views.quantities import downloads_line, received_text, version_text
from p2prl.config.presets import preset_by_name
from p2prl.json_lines import read_json_lines
from p2prl.learner.new_run_plan import RunPlan
from p2prl.plain_text import counted
from p2prl.quantity_text import size_text

if TYPE_CHECKING:
    from p2prl.config.new_run import RunFolder


def demo(
    volunteers: Annotated[int, typer.Option("--volunteers", min=1, help="Volunteer processes.")] = 3,
    cheats: Annotated[int, typer.Option("--cheats", min=0, help="Volunteers that fabricate completions.")] = 0,
    updates: Annotated[
        int | None,
        typer.Option("--updates", min=0, help="Learner updates; 0 for no end. Default: 150, or 0 with --listed."),
    ] = None,
    listed: Annotated[
        bool,
        typer.Option("--listed", help="As a public run: with an index, where the volunteers find it, until Ctrl-C."),
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder to create. Default: runs/demo, or runs/demo-2 and so on.")
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run a whole swarm on this machine.

    Uses separate processes and real sockets, ends on its own and shows what the policy learned. With --listed, it is a
    public run in a box, until Ctrl-C.
    """
    began = time.monotonic()
    if updates is None:
        updates = 0 if listed else _UPDATES
    with progress_bar("demo", quiet=as_json) as on_progress:
        on_progress("importing torch", 0.0)

        from p2prl.cli.commands.demo_result import demo_summary, plot_run
        from p2prl.cli.commands.measure_checkpoint import evaluate_checkpoint
        from p2prl.config.new_run import open_run
        from p2prl.models.hardware.device_choice import use_threads
    use_threads(1)  # a model this small gains nothing from more threads
    directory = out or _free_directory(Path("runs"), "demo")
    folder = _make_run(directory, seed, updates, quiet=as_json)
    owner = folder.identity.peer_id if listed else ""
    with progress_bar("measuring the first weights", quiet=as_json) as on_progress:
        before = evaluate_checkpoint(
            folder, directory / "model", prompts=_PROMPTS, seed=seed + 1, on_progress=on_progress
        )
    if not as_json:
        say(f"Run folder {directory}; every process logs to {directory / 'logs'}.")
    processes = DemoProcesses(directory)
    view = LiveView(quiet=as_json)
    ended = f"All processes have ended. Go on with the run:  p2prl learn {shlex.quote(str(directory))}"
    ending = "Ending all processes; Ctrl-C again ends them at once."
    with _said_at_ctrl_c(ended), processes.stopped_at_end(), _said_at_ctrl_c(ending), view.shown():
        learner = processes.start_all(volunteers=volunteers, cheats=cheats, owner=owner, tell=view.phase)
        if listed and not as_json:
            for line in public_lines(directory, processes.urls()):
                say(line)
        while learner.process.poll() is None:
            _look(processes, view, updates)
            time.sleep(_WATCH_S)
        processes.check_ended_well(learner)
        processes.await_workers()
    folder = open_run(directory)
    with progress_bar("measuring the result", quiet=as_json) as on_progress:
        after = evaluate_checkpoint(
            folder, folder.newest_weights(), prompts=_PROMPTS, seed=seed + 1, on_progress=on_progress
        )
    document = demo_summary(processes.roles, folder, before.reward, after.reward, wall_s=time.monotonic() - began)
    (directory / "summary.json").write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
    plot_run(
        read_json_lines(directory / "metrics.jsonl").objects, before.reward, after.reward, directory / "reward.png"
    )
    for line in summary_lines(document, directory, prompts=_PROMPTS):
        say(line)
    if as_json:
        emit(document)


_UPDATES = 150
_PROMPTS = 4096
"""Fresh prompts per measurement: a standard error of .007 at a reward of .8."""

_PUBLISH_EVERY = 5
"""Updates between versions: an update takes a tenth of a second here, and a version should reach every volunteer."""

_WATCH_S = 0.5
"""How often the files of the processes are read."""


def _look(processes: DemoProcesses, view: LiveView, updates: int) -> None:
    """Show the newest state, and say which processes have ended."""
    for sentence in processes.ended_early():
        say(sentence)
    metrics = read_json_lines(processes.folder / "metrics.jsonl").objects
    statuses = [(role.name, role.status()) for role in processes.roles]
    view.update(lambda: demo_panel(statuses, metrics, updates), lambda: demo_line(metrics, updates))


@contextmanager
def _said_at_ctrl_c(text: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(text)
        raise


def public_lines(directory: Path, urls: Mapping[str, str]) -> list[str]:
    """Where the pages of a listed demo are, and what to do next."""
    return [
        "",
        f"index      {urls['index']}/   the page of runs, where volunteers find this one",
        f"board      {urls['board']}/   who contributes what",
        f"people     {urls['index']}/people   what each gave over all runs that count there",
        f"look       p2prl runs --index {urls['index']}",
        f"take part  p2prl join --any --index {urls['index']}",
        f"watch      p2prl status {shlex.quote(str(directory))}",
        "next       These addresses are this machine's own; docs/run-a-swarm.md does the same for strangers.",
        "Ctrl-C ends all of it.",
        "",
    ]


def _make_run(directory: Path, seed: int, updates: int, *, quiet: bool) -> RunFolder:
    from p2prl.config.new_run import init_run

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
    with progress_bar("creating the model and its flawed warm start", quiet=quiet) as on_progress:
        return init_run(directory, plan, settings=preset.settings_text(updates=updates), on_progress=on_progress)


def _free_directory(root: Path, name: str) -> Path:
    """`root/name`, or the first of `root/name-2`, `-3`… that does not exist, so that nothing is overwritten."""
    directory, number = root / name, 1
    while directory.exists():
        number += 1
        directory = root / f"{name}-{number}"
    return directory


_BAR_COLUMNS = 30
_RECENT_UPDATES = 10


def demo_panel(
    statuses: Sequence[tuple[str, Mapping[str, Any]]], metrics: Sequence[Mapping[str, Any]], updates: int
) -> RenderableType:
    """The learner's progress toward `updates`, then one row per worker (name, status)."""
    table = Table.grid(padding=(0, 2))
    if metrics:
        last, recent = metrics[-1], metrics[-_RECENT_UPDATES:]
        done = int(last["step"])
        reward = sum(m["reward"] for m in recent) / len(recent)
        bar = f"\\[{'#' * (_BAR_COLUMNS * done // updates):<{_BAR_COLUMNS}}] " if updates else ""
        table.add_row("learner", f"{bar}update {_of(done, updates)}   policy v{last['version']}")
        table.add_row(
            "reward", f"{reward:.3f} (mean of {counted(len(recent), 'update')}), from {metrics[0]['reward']:.3f}"
        )
        table.add_row("staleness", f"p50 {last['staleness_p50']:.0f}   max {counted(last['staleness_max'], 'update')}")
    else:
        table.add_row("learner", "waiting for the first groups")
    for name, status in statuses:
        if status:
            table.add_row(name, _worker(status))
    return table


def demo_line(metrics: Sequence[Mapping[str, Any]], updates: int) -> str:
    """The newest update in one line."""
    if not metrics:
        return "waiting for the first groups"
    last = metrics[-1]
    return (
        f"update {_of(last['step'], updates)}  reward {last['reward']:.3f}  staleness max {last['staleness_max']:.0f}"
    )


def _of(step: float, updates: int) -> str:
    return f"{step:.0f}/{updates}" if updates else f"{step:.0f}"


def summary_lines(document: Mapping[str, Any], directory: Path, *, prompts: int) -> list[str]:
    """The result of a demo whose `summary.json` is `document`."""
    p50, p95, largest = (document[f"staleness_{name}"] for name in ("p50", "p95", "max"))
    share = document["weight_bytes_from_volunteers_share"]
    network, daemon = document["network_resident_bytes_max"], document["network_daemon_bytes_max"]
    return [
        "",
        f"reward     {document['reward_before']:.3f} -> {document['reward_after']:.3f}  on {prompts:,} fresh prompts",
        f"updates    {document['updates']:,}, {counted(document['versions_published'], 'policy version')} published",
        f"staleness  p50 {p50:.0f}  p95 {p95:.0f}  max {counted(largest, 'update')}",
        f"weights    {share:.0%} of the bytes volunteers received came from other volunteers",
        downloads_line(document["patch_bytes"], document["whole_bytes"], document["brought_bytes"]),
        *(f"groups     {name:<14} {count:,} verified" for name, count in document["groups_by_contributor"].items()),
        f"rejected   {document['groups_rejected']:,}",
        f"memory     network processes at most {size_text(network)} each, their daemons {size_text(daemon)}",
        f"wall       {document['wall_s']:.0f} s",
        f"Kept in {directory}: metrics.jsonl, reward.png, summary.json, checkpoints, ledger. p2prl board {directory}",
    ]


def _worker(status: Mapping[str, Any]) -> str:
    version = f"{version_text(status['version']):<4}"
    groups = status.get("groups")
    if groups is None:
        return f"{version} {status['groups_replayed']:>4} replayed  {status['verdicts_failed']} failed"
    verified, rejected = groups.get("verified", 0), groups.get("rejected", 0)
    return (
        f"{version} {verified:>4} verified {rejected:>3} rejected   weights {received_text(status)}   {status['state']}"
    )
