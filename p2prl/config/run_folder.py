"""Run folder: the files of a run on its learner's machine, opened and checked without torch.

RUN/run.toml        settings that may change between starts
RUN/run.manifest    the signed run manifest; another manifest is another run
RUN/key.json        the learner's key
RUN/model/          the first weights, a Hugging Face directory
RUN/files/          configuration and tokenizer, as volunteers download them
RUN/data/TASK/      packed prompts and rows of a data task, those held out, and the researcher's scorer
RUN/preferences/    pairs of answers, and what the first weights make of them
RUN/reward_model/   the reward model, under the digest in the manifest; never shipped
RUN/checkpoints/    the newest weights, Hugging Face directories
RUN/journal.db      groups, batches, published policies and the ledger
RUN/blobs/          published patches, and in chain/ the weights
RUN/micro-batches.jsonl  how updates are split into micro-batches
RUN/host-plan.json  plans of ranks as a profile found them, with `plan = "auto"`
RUN/metrics.jsonl   one line per update
RUN/evaluations.jsonl  one line per evaluated version
RUN/status.json     state of the learner, for `p2prl status`
RUN/link            the join link, once the learner has been up
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from p2prl.config.toml_tables import read_toml
from p2prl.config.worker_folder import check_folder_name, try_lock
from p2prl.errors import ConfigError, MachineError, RemoteProtocolError
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.training.checkpoints import newest_checkpoint
from p2prl.net.storage.key_file import load_identity
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope
from p2prl.protocol.identity import Identity
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.manifests import RunManifest


@contextlib.contextmanager
def new_folder(directory: Path) -> Iterator[Path]:
    """A folder beside `directory` to fill. It takes the place of `directory`, which is missing or empty, when the block
    ends; after an exception nothing is left of it, nor of the folders above it that were made for it."""
    new = directory.with_name(f".{directory.name}.new-{os.getpid()}")
    missing = [parent for parent in directory.parents if not parent.exists()]
    try:
        new.mkdir(parents=True)
        yield new
        if directory.exists():
            directory.rmdir()
        new.rename(directory)
    finally:
        shutil.rmtree(new, ignore_errors=True)
        for parent in missing:
            with contextlib.suppress(OSError):  # it holds the run
                parent.rmdir()


@dataclass(frozen=True, slots=True)
class Folder:
    """A run folder whose key belongs to its manifest. Its settings have not been read."""

    directory: Path
    identity: Identity
    manifest: RunManifest
    manifest_raw: bytes

    @property
    def run(self) -> Digest:
        """The run's identity: the digest of its manifest's envelope."""
        return envelope_digest(self.manifest_raw)

    @property
    def paths(self) -> LearnerPaths:
        """Paths of the learner's own files."""
        return LearnerPaths(self.directory)

    @property
    def key_file(self) -> Path:
        """The learner's key."""
        return self.directory / "key.json"

    @property
    def link_file(self) -> Path:
        """The join link, once the learner has been up."""
        return self.directory / "link"

    @property
    def settings_file(self) -> Path:
        """Settings that may change between starts."""
        return self.directory / "run.toml"

    def settings_table(self) -> dict[str, object]:
        """The raw settings, unchecked. Raises `ConfigError` when the file is not TOML."""
        return read_toml(self.settings_file) if self.settings_file.exists() else {}

    def record_planned_updates(self, updates: int) -> None:
        """Record the number of updates the learner was started for, 0 for no end: `learn` may override run.toml."""
        new = self._target_file.with_suffix(".new")
        new.write_text(f"{updates}\n")
        new.rename(self._target_file)

    def planned_updates(self) -> int | None:
        """Updates that the learner was last started for, or else those of run.toml; None when there is no end."""
        if self._target_file.exists():
            text = self._target_file.read_text().strip()
            return int(text) or None if text.isdecimal() else None
        try:
            learner = self.settings_table().get("learner")
        except ConfigError:  # half edited: the learner will refuse it, a reader continues without a target
            return None
        updates = learner.get("updates") if isinstance(learner, dict) else None
        return updates if isinstance(updates, int) and updates > 0 else None

    @property
    def _target_file(self) -> Path:
        return self.directory / "planned-updates"

    def link(self, addresses: tuple[str, ...]) -> JoinLink:
        """The join link for a learner that listens at `addresses`."""
        return JoinLink(self.manifest.name, self.run, addresses[: limits.MAX_ADDRESSES])

    def lock(self) -> IO[str]:
        """Lock the run for this process. `MachineError` when another learner holds it."""
        lock = try_lock(self.directory)
        if lock is None:
            raise MachineError(
                f"another learner is running on {self.directory}", remedy="Stop it first, or use another run folder."
            )
        return lock

    def newest_weights(self) -> Path:
        """The newest checkpoint, or the first weights when there is none yet."""
        return newest_checkpoint(self.paths.checkpoints) or self.directory / "model"


def open_folder(directory: Path) -> Folder:
    """Read a run folder. Raises `ConfigError` when it is not one."""
    manifest_path = directory / "run.manifest"
    if not manifest_path.is_file():
        raise ConfigError(
            f"{directory} is not a run folder",
            remedy="Make one first: p2prl init NAME --preset chain4. A join link begins with p2prl://.",
        )
    check_folder_name(directory, remedy="Rename it.")
    raw = manifest_path.read_bytes()
    try:
        manifest = body_of(open_envelope(raw, now=None), RunManifest)
        manifest.check()
    except RemoteProtocolError as error:
        raise ConfigError(
            f"{manifest_path} is damaged: {error}",
            remedy="Restore it from a copy; any other manifest would be another run.",
        ) from error
    identity = load_identity(directory / "key.json")
    if identity.public_key != manifest.learner:
        raise ConfigError(
            f"{directory / 'key.json'} is not the key this run was made with", remedy="Restore the run's own key."
        )
    return Folder(directory, identity, manifest, raw)


def refuse_folder_in_use(directory: Path) -> None:
    """Raise `ConfigError` when a new run's folder exists and holds anything: nothing is ever overwritten."""
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"{directory} exists and is not empty", remedy="Choose another name; nothing was touched.")
