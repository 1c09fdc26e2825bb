"""A run folder whose learner has trained a few updates on groups of two volunteers, and is still running."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

from p2prl.config.presets import preset_by_name
from p2prl.config.worker_folder import try_lock
from p2prl.learner.timing.next_update import Action
from p2prl.net.storage.key_file import create_identity
from tests.unit.learner.scripted_swarm import ScriptedSwarm, make_learner
from tests.unit.learner.small_run import SmallRun

UPDATES = 3
CHAT_TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


class TrainedRun:
    """The run folder, with its learner's journal open and its lock held."""

    def __init__(self, directory: Path, **changes: Any) -> None:
        """`changes` are settings of the learner."""
        self.directory = directory
        self.small_run = run = SmallRun(directory, group_size=8, dtype="bfloat16")
        run.loaded.tokenizer.chat_template = CHAT_TEMPLATE
        run.loaded.model.save_pretrained(directory / "model")
        run.loaded.tokenizer.save_pretrained(directory / "model")
        (directory / "files").mkdir()
        for name, data in run.files.items():
            (directory / "files" / name).write_bytes(data)
        (directory / "run.manifest").write_bytes(run.manifest_raw)
        (directory / "run.toml").write_text(preset_by_name("chain4").settings_text())
        create_identity(directory / "key.json", run.learner)
        self._lock = try_lock(directory)
        self.swarm = ScriptedSwarm(run, lambda: make_learner(run, updates=UPDATES, **changes))
        for number in itertools.count():
            assert number < 60, "the run did not end"
            if self.swarm.turn() is Action.FINISH:
                break
        training = self.swarm.learner._training
        training.stage.run(training.checkpoint())
        training.stage.finish()

    @property
    def checkpoint(self) -> Path:
        """The newest checkpoint."""
        return self.directory / "checkpoints" / f"step-{UPDATES:08d}"

    def weights(self, version: int) -> bytes:
        """The weights of a published version."""
        return bytes(self.small_run.published.weights(version).open())

    def copy_to(self, directory: Path, *, whole_files: bool = False) -> Path:
        """Copy the run folder; with `whole_files` as an earlier program left it, a file for every version.

        Returns the file that holds the newest version's weights.
        """
        shutil.copytree(self.directory, directory)
        chain = directory / "blobs" / "chain"
        if not whole_files:
            return chain / "weights"
        shutil.rmtree(chain)
        for policy in self.small_run.published.all():
            path = directory / "blobs" / policy.manifest.weights.root.hex()
            path.write_bytes(self.weights(policy.manifest.version))
        newest = self.small_run.published.newest
        assert newest is not None
        return directory / "blobs" / newest.manifest.weights.root.hex()

    def close(self) -> None:
        self.swarm.learner.close()
        self.small_run.close()
        assert self._lock is not None
        self._lock.close()
