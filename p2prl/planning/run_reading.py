"""Reads a run folder for a plan of its run, also while its learner works: metrics, journal and manifest."""

from __future__ import annotations

from pathlib import Path

from p2prl.config.run_folder import open_folder
from p2prl.json_lines import read_json_lines
from p2prl.learner.journal.deliveries import read_deliveries
from p2prl.planning.fleet import PlannedRun
from p2prl.planning.observed_run import ObservedRun, newest_updates, observed_run
from p2prl.planning.queue_simulation import PACE_LIMIT
from p2prl.scoreboard.display_names import display_name


def read_observed(directory: Path) -> tuple[str, ObservedRun, float]:
    """(name and model of the run, what its learner has seen lately, its pace limit). `ConfigError` before there is
    enough, or if run.toml is no TOML."""
    folder = open_folder(directory)
    manifest = folder.manifest
    updates = newest_updates(read_json_lines(folder.paths.metrics).objects)
    begins = updates[0]["time"] - updates[0]["seconds"]
    run = PlannedRun(
        model="",
        group_size=manifest.sampling.group_size,
        prompt_tokens=0,
        completion_tokens=manifest.sampling.max_new_tokens,
        staleness=manifest.staleness_bound,
    )
    seen = observed_run(updates, read_deliveries(folder.paths.journal, since=begins), run=run, name_of=display_name)
    learner = folder.settings_table().get("learner")
    limit = learner.get("pace_limit") if isinstance(learner, dict) else None
    pace_limit = float(limit) if isinstance(limit, int | float) else PACE_LIMIT
    return f"{manifest.name}, {manifest.base_model}", seen, pace_limit
