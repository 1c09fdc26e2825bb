"""Create a run folder from the options of `p2prl init`. torch is imported after they are checked."""

from __future__ import annotations

import shlex
from pathlib import Path
from tempfile import TemporaryDirectory

from p2prl.cli.commands.init_options import InitOptions
from p2prl.cli.commands.init_plan import probe_groups, run_plan
from p2prl.cli.commands.init_preset import Prepared, prepare_preset
from p2prl.cli.views.console import emit, say
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.config.run_folder import refuse_folder_in_use
from p2prl.config.worker_folder import check_writable
from p2prl.models.base_model.model_card import NOT_STATED


def init_command(options: InitOptions) -> None:
    """Create the run folder; options that are None come from the preset."""
    with TemporaryDirectory(prefix="p2prl-init-") as folder:
        prepared = prepare_preset(options, Path(folder))
        _make_run(prepared, is_untried=prepared.is_own_model or bool(options.data))


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

        from p2prl.config.init_checks import PROBE_GROUPS, InitChecks
        from p2prl.config.learner_disk import disk_text
        from p2prl.config.run_settings import describe, init_run
        from p2prl.models.hardware.device import use_threads

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
