"""Options that a preset adds to those of `p2prl init`: its rows and scorers, and the small language model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from p2prl.cli.commands.init_options import InitOptions
from p2prl.cli.views.progress_bar import progress_bar
from p2prl.config.preset_materials import materials
from p2prl.config.presets import preset_by_name
from p2prl.config.run_folder import refuse_folder_in_use
from p2prl.tasks.task_spec import Demonstration

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
    if not preset.makes_model or options.tasks:
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
    from p2prl.models.hardware.device import use_threads
    from p2prl.models.small_models.directory import make_small_model

    use_threads(_THREADS)
    make_small_model(directory, task, demonstration(), seed=seed, on_progress=on_progress)
