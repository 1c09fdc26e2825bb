"""Open the rollouts that a run folder was trained on, with the run's tokenizer, prompts and scorers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from p2prl.config.new_run import RunFolder, run_file_blobs
from p2prl.config.run_data import RunData, folder_data
from p2prl.learner.journal.kept_rollouts import KeptRollouts
from p2prl.learner.rollouts import RolloutReader
from p2prl.models.groups.group_work import GroupWork
from p2prl.models.rewards.reward_parts import RewardParts, part_task
from p2prl.models.rewards.run_reward import RunReward
from p2prl.models.run_model import read_run_model
from p2prl.tasks.sandbox.pool import TaskScoring
from p2prl.tasks.scorers.build import needs_code
from p2prl.tasks.scorers.spec import scorers_alone


@contextmanager
def open_rollouts(
    folder: RunFolder, kept: KeptRollouts, *, on_notice: Callable[[str], None]
) -> Iterator[RolloutReader]:
    """A reader of the kept rollouts; it takes no memory for weights.

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
    reward = RunReward(manifest.reward, [share.task for share in manifest.tasks], data_tasks=data.tasks)
    with ExitStack() as resources:
        codec = model.codec()
        work = GroupWork(manifest, folder.run, codec, data.tasks)
        resources.callback(work.close)
        pool = RunData(scoring=_of_parts(data)).start_scorers(on_notice)
        if pool is not None:
            resources.callback(pool.close)
        parts = RewardParts(reward, {task: scoring.spec for task, scoring in data.scoring.items()}, pool)
        yield RolloutReader(kept, work, codec, parts, loss=folder.loss_config(), data=data.tasks)


def _of_parts(data: RunData) -> dict[str, TaskScoring]:
    """The scoring by each scorer of each data task alone."""
    return {
        part_task(task, name): TaskScoring(spec, scoring.code if needs_code(spec) else None)
        for task, scoring in data.scoring.items()
        for name, spec in scorers_alone(scoring.spec).items()
    }
