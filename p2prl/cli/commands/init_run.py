"""Create a run folder from the options of `p2prl init`. torch is imported after they are checked."""

from __future__ import annotations

import re
from pathlib import Path

from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.config.presets import preset_by_name
from p2prl.config.run_folder import refuse_folder_in_use
from p2prl.config.worker_folder import check_writable
from p2prl.errors import ConfigError
from p2prl.learner.run_plan import RunPlan
from p2prl.models.model_license import NOT_STATED

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def init_command(
    name: str,
    *,
    preset: str,
    model: str | None,
    task: str | None,
    goal: str | None,
    staleness: int | None,
    publish_every: int | None,
    group_size: int,
    temperature: float,
    max_new_tokens: int | None,
    reward: str,
    dtype: str | None,
    compute_dtype: str | None,
    license_name: str | None,
    root: Path,
    seed: int,
    as_json: bool,
) -> None:
    """Create the run folder `root`/`name`; options that are None come from the preset."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is not a valid run name", remedy="Use at most 64 letters, digits, dots and dashes."
        )
    chosen = preset_by_name(preset, task=task)
    plan = RunPlan(
        name=name,
        goal=goal or chosen.goal,
        task=chosen.task,
        model=model,
        group_size=group_size,
        temperature=temperature,
        max_new_tokens=max_new_tokens or chosen.max_new_tokens,
        staleness_bound=chosen.staleness_bound if staleness is None else staleness,
        publish_every=publish_every or chosen.publish_every,
        reward=reward,
        dtype=dtype or chosen.dtype,
        # With --dtype alone, engines compute in that type too.
        compute_dtype=compute_dtype or ("" if dtype else chosen.compute_dtype),
        license=license_name,
        seed=seed,
    )
    refuse_folder_in_use(root / name)
    check_writable(root, remedy="Give another folder with --in.")

    with progress_bar("creating the run", quiet=as_json) as on_progress:
        on_progress("importing torch", 0.0)

        from p2prl.config.run_settings import describe, init_run
        from p2prl.models.device import use_threads

        if model is None:
            use_threads(1)  # a model this small gains nothing from more threads
        notices: list[str] = []
        folder = init_run(
            root / name, plan, settings=chosen.settings_text(), on_progress=on_progress, on_notice=notices.append
        )
    for notice in notices:
        say(notice)
    say(f"Created {folder.directory}. Start its learner:  p2prl learn {folder.directory}")
    if folder.manifest.licence == NOT_STATED:
        say("The license of the trained weights is not stated: the model has no card with one (--license).")
    if as_json:
        emit({"run": str(folder.directory), "digest": folder.run.hex(), **describe(folder.manifest)})
