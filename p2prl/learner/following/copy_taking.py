"""A consistent copy of the run folder: all files but the journal, then the journal, between two turns of the learner.

The journal never names what the copy lacks: a version's files are complete before its row is written, and batches stay
in the journal until two later checkpoints are complete. Files that are never changed in place are hard links, so they
stay in the copy when the learner deletes them; the others are copied.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from p2prl.disk_full import write_error
from p2prl.learner.following.copy_list import CopiedFile, CopyList, digests_of, is_copied
from p2prl.learner.journal.journal import Journal
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.learner.training.checkpoints import complete_checkpoints
from p2prl.net.storage.chain_blobs import CHAIN_FOLDER
from p2prl.net.storage.chain_reader import STATE_FILE, WEIGHTS_FILE
from p2prl.swarm.following import FOLLOW_PIECE_BYTES

_NEVER_CHANGED = frozenset({"blobs", "checkpoints", "data", "files", "model", "preferences", "reward_model"})
"""Folders whose files are written once, under another name, and then renamed; but for the chain's two."""

_REWRITTEN = frozenset({f"blobs/{CHAIN_FOLDER}/{name}" for name in (WEIGHTS_FILE, STATE_FILE)})

Stamp = tuple[str, int, int, int]


class CopyTaker:
    """Takes copies of one run folder."""

    def __init__(self, paths: LearnerPaths, journal: Journal, on_notice: Callable[[str], None]) -> None:
        self._paths = paths
        self._journal = journal
        self._on_notice = on_notice
        self._known: dict[Stamp, bytes] = {}
        """Digests of the pieces of files that are never changed."""
        self._left_out: set[str] = set()

    def take(self, into: Path) -> bool:
        """Copy the run folder, in the learner's main thread while no version is being written. False when training has
        completed or removed a checkpoint meanwhile, and nothing was copied."""
        before = complete_checkpoints(self._paths.checkpoints)
        try:
            shutil.rmtree(into, ignore_errors=True)
            into.mkdir(parents=True)
            for source, path in self._files():
                target = into / path
                target.parent.mkdir(parents=True, exist_ok=True)
                if _is_never_changed(path):
                    _link(source, target)
                else:
                    shutil.copyfile(source, target)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise write_error(error, f"the copy for the standby learner in {into}") from error
        self._journal.copy_to(into / self._paths.journal.name)
        return before == complete_checkpoints(self._paths.checkpoints)

    def list_of(self, copy: Path) -> CopyList:
        """The list of a copy, in any one thread: reads every file that is new since the copy before."""
        known: dict[Stamp, bytes] = {}
        files = []
        for source, path in _walk(copy):
            stat = source.stat()
            stamp = (path, stat.st_ino, stat.st_size, stat.st_mtime_ns)
            pieces = self._known.get(stamp) if _is_never_changed(path) else None
            if pieces is None:
                pieces = b"".join(digests_of(_pieces(source)))
            known[stamp] = pieces
            files.append(CopiedFile(path, stat.st_size, pieces))
        self._known = known
        return CopyList(tuple(files))

    def _files(self) -> Iterator[tuple[Path, str]]:
        journal = self._paths.journal.name
        for source, path in _walk(self._paths.run):
            if is_copied(path):
                if not path.startswith(journal):
                    yield source, path
            elif self._is_left_out(path):
                self._left_out.add(path)
                self._on_notice(f"not followed, for its name: {path}")

    def _is_left_out(self, path: str) -> bool:
        """Whether a file that is not copied should be told of: one of a folder that the owner filled, once."""
        is_unfinished = any(part.endswith((".new", ".part")) for part in path.split("/"))
        return path.split("/")[0] in _NEVER_CHANGED and not is_unfinished and path not in self._left_out


def _walk(folder: Path) -> Iterator[tuple[Path, str]]:
    """(file, path in the folder) of all regular files, in order; links, and what is the machine's own, are passed
    over."""
    for path, folders, names in os.walk(folder):
        relative = "" if path == str(folder) else f"{Path(path).relative_to(folder).as_posix()}/"
        folders[:] = sorted(name for name in folders if relative or is_copied(f"{name}/x"))
        for name in sorted(names):
            file = Path(path) / name
            if file.is_file() and not file.is_symlink():
                yield file, relative + name


def _is_never_changed(path: str) -> bool:
    return path.split("/")[0] in _NEVER_CHANGED and path not in _REWRITTEN


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _pieces(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        while piece := file.read(FOLLOW_PIECE_BYTES):
            yield piece
