"""Run a demo: make a run, start its processes, show the files they write, measure the result with a fresh engine."""

from __future__ import annotations

import json
import time
from pathlib import Path

from p2prl.cli.commands.demo_processes import DemoProcesses
from p2prl.cli.commands.demo_summary import demo_summary
from p2prl.cli.commands.eval_checkpoint import evaluate_checkpoint
from p2prl.cli.views.console import LiveView, emit, say
from p2prl.cli.views.demo_view import demo_line, demo_panel, summary_lines
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.cli.views.reward_plot import plot_run
from p2prl.config.presets import preset_by_name
from p2prl.config.run_settings import RunFolder, init_run, open_run
from p2prl.json_lines import read_json_lines
from p2prl.learner.run_plan import RunPlan
from p2prl.models.hardware.device import use_threads

_PROMPTS = 4096
"""Fresh prompts per measurement: a standard error of .007 at a reward of .8."""

_PUBLISH_EVERY = 5
"""Updates between versions: an update takes a tenth of a second here, and a version should reach every volunteer."""

_WATCH_S = 0.5
"""How often the files of the processes are read."""


def demo_command(*, volunteers: int, cheats: int, updates: int, out: Path | None, seed: int, as_json: bool) -> None:
    """Run the demo and print its result."""
    began = time.monotonic()
    use_threads(1)  # a model this small gains nothing from more threads
    directory = out or _free_directory(Path("runs"), "demo")
    folder = _make_run(directory, seed, updates, quiet=as_json)
    with progress_bar("measuring the first weights", quiet=as_json) as on_progress:
        before = evaluate_checkpoint(
            folder, directory / "model", prompts=_PROMPTS, seed=seed + 1, on_progress=on_progress
        )
    if not as_json:
        say(f"Run folder {directory}; every process logs to {directory / 'logs'}.")
    processes = DemoProcesses(directory)
    view = LiveView(quiet=as_json)
    with processes.stopped_at_end(), view.shown():
        view.phase("starting the learner")
        learner = processes.start_all(volunteers=volunteers, cheats=cheats)
        while learner.process.poll() is None:
            for sentence in processes.ended_early():
                say(sentence)
            metrics = read_json_lines(directory / "metrics.jsonl").objects
            statuses = [(role.name, role.status()) for role in processes.roles]
            view.update(
                lambda statuses=statuses, metrics=metrics: demo_panel(statuses, metrics, updates),  # type: ignore[misc]
                lambda metrics=metrics: demo_line(metrics, updates),  # type: ignore[misc]
            )
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
    with progress_bar("creating the model and its flawed warm start", quiet=quiet) as on_progress:
        return init_run(directory, plan, settings=preset.settings_text(updates=updates), on_progress=on_progress)


def _free_directory(root: Path, name: str) -> Path:
    """`root/name`, or the first of `root/name-2`, `-3`… that does not exist, so that nothing is overwritten."""
    directory, number = root / name, 1
    while directory.exists():
        number += 1
        directory = root / f"{name}-{number}"
    return directory
