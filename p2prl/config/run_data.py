"""Data of a run on this machine, from a run folder or from downloaded blobs, and its scorers in their sandbox."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from p2prl.config.run_folder import Folder
from p2prl.confinement.children import Launch
from p2prl.errors import ConfigError, IntegrityError, RemoteProtocolError
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import BlobRef, RunManifest, blob_of
from p2prl.protocol.run_blobs import answers_name, code_name, data_blobs, is_third_party, prompts_name
from p2prl.quantity_text import size_text
from p2prl.tasks.data.data_plan import (
    HELD_OUT_PROMPTS_FILE,
    HELD_OUT_ROWS_FILE,
    PROMPTS_FILE,
    ROWS_FILE,
    SCORER_FILE,
)
from p2prl.tasks.data.packed_data import DataSplit, PackedPrompts, PackedRows, TaskData, file_blob
from p2prl.tasks.environment import Environment, EnvironmentTask
from p2prl.tasks.sandbox.pool import PoolConfig, Protection, ScorerPool, TaskScoring
from p2prl.tasks.task import Task
from p2prl.tasks.task_registry import task_by_name
from p2prl.tasks.wasm.runtime import Program
from p2prl.tasks.wasm.wasm_environment import WasmEnvironment

_TOLD_BYTES = 500_000_000
"""Data whose check takes longer than a second or two is announced."""


@dataclass(frozen=True, slots=True)
class RunData:
    """The data of a run's data tasks and how it is scored here, and the environments that the run brings."""

    tasks: dict[str, TaskData] = field(default_factory=dict)
    """Data by the name of the task."""
    scoring: dict[str, TaskScoring] = field(default_factory=dict)
    """Scoring of those tasks that this machine scores."""
    environments: dict[str, Environment] = field(default_factory=dict)
    """Environments that are modules among the run's files, by the name of the task."""

    require_layers: bool = False
    """Refuse third-party scorers where this system cannot confine them: their author is not this machine's owner."""

    def start_scorers(
        self, on_notice: Callable[[str], None] | None = None, launch: Launch | None = None
    ) -> ScorerPool | None:
        """Sandboxed processes that score; None when nothing is scored here. Close it.

        `launch` starts them, where this process may start none. `on_notice` gets a message when third-party code is not
        fully confined. `ConfigError` when a scorer cannot be built or must not run here, `MachineError` when the
        processes do not start.
        """
        if not self.scoring:
            return None
        pool = ScorerPool(self.scoring, PoolConfig(require_layers=self.require_layers), launch=launch)
        if on_notice is not None and (notice := confinement_notice(pool)):
            on_notice(notice)
        return pool


class _Scorers(Protocol):
    """What a pool says about its confinement."""

    @property
    def protection(self) -> Protection: ...
    @property
    def runs_third_party_code(self) -> bool: ...


def confinement_notice(pool: _Scorers) -> str:
    """Warning that this system does not confine third-party scorers; empty when it does, or there are none."""
    if pool.protection.confines or not pool.runs_third_party_code:
        return ""
    return (
        f"third-party code scores this run's data, and this system does not confine it: no "
        f"{', '.join(pool.protection.missing)}. It runs with your rights; use Linux 5.13 or later to confine it"
    )


def downloaded_data(manifest: RunManifest, files: Mapping[str, Path], *, scores: bool, runs_scorer: bool) -> RunData:
    """Data as a worker has downloaded it. `files` are named as in `p2prl/protocol/run_blobs.py`.

    `scores` is for a validator: it scores every task whose scorers are built in, and with `runs_scorer` those that run
    third-party code. `IntegrityError` for data that is not what the manifest says.
    """
    run = RunData(environments=environments_of(manifest, files), require_layers=True)
    for data in manifest.data_sets:
        scored = scores and (runs_scorer or not is_third_party(data))
        rows = PackedRows(files[answers_name(data.task)], rows=data.rows) if scored else None
        prompts = PackedPrompts(files[prompts_name(data.task)], rows=data.rows)
        run.tasks[data.task] = TaskData(DataSplit(prompts, rows))
        if scored:
            run.scoring[data.task] = TaskScoring(data.scoring, files[code_name(data.task)] if data.code else None)
    return run


def environments_of(manifest: RunManifest, files: Mapping[str, Path]) -> dict[str, Environment]:
    """The environments that a run brings, compiled. `files` are named as in the manifest.

    `RemoteProtocolError` for a module that cannot be one, `ConfigError` where this machine runs none.
    """
    found: dict[str, Environment] = {}
    for task, file in manifest.modules.items():
        try:
            found[task] = WasmEnvironment(task, Program(files[file.name].read_bytes()))
        except RemoteProtocolError as error:
            raise RemoteProtocolError(f"the environment {task} cannot be used: {error}") from error
    return found


def seeded_tasks(manifest: RunManifest, environments: Mapping[str, Environment]) -> list[Task]:
    """The tasks of a run whose prompts follow from seeds: installed ones, and `environments` that it brings."""
    rows = {data.task for data in manifest.data_sets}
    brought = {name: EnvironmentTask(environment) for name, environment in environments.items()}
    names = [share.task for share in manifest.tasks if share.task not in rows]
    return [brought[name] if name in brought else task_by_name(name).task for name in names]


def folder_data(folder: Folder) -> RunData:
    """Data of a run folder, held-out rows included. `ConfigError` when a file is missing or damaged, and for other
    held-out rows than the manifest names: figures of different rows would stand side by side."""
    run = RunData(environments=_folder_environments(folder))
    for data in folder.manifest.data_sets:
        place = data_folder(folder, data.task)
        try:
            training = DataSplit(
                PackedPrompts(place / PROMPTS_FILE, rows=data.rows), PackedRows(place / ROWS_FILE, rows=data.rows)
            )
            held_out = _held_out(place, data.held_out) if data.held_out else None
        except (OSError, IntegrityError) as error:
            raise _unusable(error, place) from error
        run.tasks[data.task] = TaskData(training, held_out)
        run.scoring[data.task] = TaskScoring(data.scoring, place / SCORER_FILE if data.code else None)
    return run


def _folder_environments(folder: Folder) -> dict[str, Environment]:
    place = folder.directory / "files"
    files = {file.name: place / file.name for file in folder.manifest.modules.values()}
    try:
        for file in folder.manifest.modules.values():
            _refuse_other(
                files[file.name], blob_of(files[file.name].read_bytes(), file.blob.chunk_bytes), file.blob.root
            )
        return environments_of(folder.manifest, files)
    except (OSError, IntegrityError, RemoteProtocolError) as error:
        raise _unusable(error, place) from error


def _held_out(place: Path, root: bytes) -> DataSplit:
    """Held-out rows with the digest `root`. `IntegrityError` for other ones."""
    path = place / HELD_OUT_ROWS_FILE
    _refuse_other(path, file_blob(path), root)
    rows = PackedRows(path)
    return DataSplit(PackedPrompts(place / HELD_OUT_PROMPTS_FILE, rows=len(rows)), rows)


def _refuse_other(path: Path, found: BlobRef, root: bytes) -> None:
    if found.root != root:
        raise IntegrityError(f"{path} is not the file that the run's manifest names")


def serve_data(folder: Folder, blobs: DiskBlobStore, on_notice: Callable[[str], None]) -> None:
    """Check the data of a run folder against its manifest and put it among the blobs that peers download.

    `ConfigError` when a file is missing or was changed: validators would score with other rows than the learner.
    """
    files = {file.name: file.blob for file in data_blobs(folder.manifest, Role.LEARNER)}
    size_bytes = sum(blob.size_bytes for blob in files.values())
    if size_bytes >= _TOLD_BYTES:
        on_notice(f"checking {size_text(size_bytes)} of data")
    for data in folder.manifest.data_sets:
        place = data_folder(folder, data.task)
        names = {prompts_name: PROMPTS_FILE, answers_name: ROWS_FILE, code_name: SCORER_FILE}
        for name, file in names.items():
            if (blob := files.get(name(data.task))) is None:
                continue
            try:
                blobs.take_in(blob, place / file)
            except IntegrityError as error:
                raise _unusable(error, place) from error


def data_folder(folder: Folder, task: str) -> Path:
    """Folder of a data task's files. `ConfigError` when its name is no folder's."""
    if task in (".", "..") or Path(task).name != task:
        raise ConfigError(f"the data task {task!r} has no folder", remedy="Make the run again with `p2prl init`.")
    return folder.directory / "data" / task


def _unusable(error: Exception, place: Path) -> ConfigError:
    return ConfigError(
        f"the run's data cannot be used: {error}",
        remedy=f"Put back the files of {place} as `p2prl init` made them. Other data is another run.",
    )
