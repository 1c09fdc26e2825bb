"""`p2prl init`: create a run folder. torch is imported after the options are checked."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from p2prl.cli.commands.init_options import InitOptions
from p2prl.cli.commands.init_plan import probe_groups, run_plan
from p2prl.cli.options import takes_records
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.config.preset_materials import materials
from p2prl.config.presets import preset_by_name
from p2prl.config.run_folder import refuse_folder_in_use
from p2prl.config.worker_folder import check_writable
from p2prl.models.base_model.base_model_card import NOT_STATED
from p2prl.tasks.task_spec import Demonstration


@takes_records
def init(options: InitOptions) -> None:
    """Create a run: model, tasks, key and signed manifest."""
    with TemporaryDirectory(prefix="p2prl-init-") as folder:
        prepared = prepare_preset(options, Path(folder))
        _make_run(prepared, is_untried=prepared.is_own_model or bool(options.data or options.environments))


def _make_run(prepared: Prepared, *, is_untried: bool) -> None:
    """`is_untried`: the user named the model or the data, while those of a preset are known to fit each other."""
    options = prepared.options
    plan, settings = run_plan(options)
    groups = probe_groups(options)
    root = options.root
    refuse_folder_in_use(root / plan.name)
    check_writable(root, remedy="Give another folder with --in.")

    with progress_bar("creating the run", quiet=options.as_json) as on_progress:
        on_progress("importing torch", 0.0)

        from p2prl.config.learnable_checks import PROBE_GROUPS, InitChecks
        from p2prl.config.learner_disk import disk_text
        from p2prl.config.new_run import describe, init_run
        from p2prl.models.hardware.device_choice import use_threads

        if plan.model is None:
            use_threads(1)  # a model this small gains nothing from more threads
        prepared.make_model(on_progress)
        notices: list[str] = []
        checks = None
        if is_untried or groups:
            checks = InitChecks(probe_groups=PROBE_GROUPS if groups is None else groups, force=options.force)
        folder = init_run(
            root / plan.name,
            plan,
            settings=settings,
            on_progress=on_progress,
            on_notice=notices.append,
            fit_settings=prepared.is_own_model,
            changes=options.changes,
            checks=checks,
        )
    for notice in notices:
        say(notice)
    say(disk_text(folder.manifest))
    say(f"Created {folder.directory}. Start its learner:  p2prl learn {shlex.quote(str(folder.directory))}")
    if folder.manifest.licence == NOT_STATED:
        say("The license of the trained weights is not stated: the model has no card with one (--license).")
    if options.as_json:
        emit({"run": str(folder.directory), "digest": folder.run.hex(), **describe(folder.manifest)})


Progress = Callable[[str, float], None]

_THREADS = 2
"""Threads of the warm start: with more, a model this small waits for them more than it gains."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Complete options, and what is left to do before they hold."""

    options: InitOptions
    make_model: Callable[[Progress], None]
    """Makes the model that the options name; takes a minute for the small language model, else does nothing."""
    is_own_model: bool
    """The user named the model, so that run.toml must be made to fit it."""


def prepare_preset(options: InitOptions, folder: Path) -> Prepared:
    """Options with what the preset gives where the user gave nothing; its rows are written into `folder`.

    The model is made later, when all options are known to be legal. A task that the user names replaces the preset's
    rows and model.
    """
    preset = preset_by_name(options.preset)
    if not preset.makes_model or options.tasks or options.environments:
        return Prepared(options, _nothing, options.model is not None)
    refuse_folder_in_use(options.root / options.name)
    filled = replace(options, max_new_tokens=options.max_new_tokens or preset.max_new_tokens)
    if options.data and options.model is not None:
        return Prepared(filled, _nothing, True)
    with progress_bar("preparing", quiet=options.as_json) as on_progress:
        made = materials(options.preset, folder, seed=options.seed, on_progress=on_progress)
    if not options.data:
        filled = replace(
            filled,
            tasks=list(made.tasks),
            data=list(made.data),
            held_out=options.held_out or list(made.held_out),
            scorers=options.scorers or list(made.scorers),
            goal=preset.goal if options.goal is None and options.model is None else options.goal,
        )
    if options.model is not None:
        return Prepared(filled, _nothing, True)
    directory = folder / "model"

    def make_model(on_progress: Progress) -> None:
        _make_small_model(directory, preset.task, made.demonstration, options.seed, on_progress)

    return Prepared(replace(filled, model=str(directory)), make_model, False)


def _nothing(on_progress: Progress) -> None:
    """Nothing is left to do."""


def _make_small_model(
    directory: Path, task: str, demonstration: Callable[[], Demonstration], seed: int, on_progress: Progress
) -> None:
    from p2prl.models.hardware.device_choice import use_threads
    from p2prl.models.small_models.language_model import make_small_model

    use_threads(_THREADS)
    make_small_model(directory, task, demonstration(), seed=seed, on_progress=on_progress)
