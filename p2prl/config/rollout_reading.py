"""Open the rollouts that a run folder was trained on, with the run's tokenizer, prompts and scorers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from p2prl.config.new_run import RunFolder, run_file_blobs
from p2prl.config.reward_model_files import open_reward_model
from p2prl.config.run_data import folder_data
from p2prl.learner.journal.rollout_reader import KeptRollouts
from p2prl.learner.trained_rollouts import RolloutReader
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.hardware.device_choice import choose_device
from p2prl.models.run_model import read_run_model


@contextmanager
def open_rollouts(
    folder: RunFolder, kept: KeptRollouts, *, on_notice: Callable[[str], None]
) -> Iterator[RolloutReader]:
    """A reader of the kept rollouts; it takes no memory for weights but those of a reward model.

    `on_notice` gets a message when third-party scorers are not fully confined on this system. `ConfigError` for a run
    folder whose files are damaged or missing.
    """
    manifest = folder.manifest
    model = read_run_model(
        {file.name: content for file, content in run_file_blobs(folder)},
        layout_digest=manifest.layout,
        weight_bytes=manifest.weight_bytes,
        dtype=manifest.engine_dtype,
        lora=manifest.lora,
    )
    data = folder_data(folder)
    with ExitStack() as resources:
        codec = model.codec()
        reward_model = open_reward_model(folder, choose_device("cpu"), on_notice)
        scorers = data.start_scorers(on_notice)
        work = GroupWork(manifest, folder.run, codec, data.tasks, scorers, reward_model, data.environments)
        resources.callback(work.close)
        yield RolloutReader(kept, work, codec, loss=folder.loss_config())
