"""Removal of a run that was refused: nothing of a stranger's stays on the disk."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from p2prl.config.network_options import is_remembered
from p2prl.errors import RefusedRunError

_OF_THE_RUN = ("run.manifest", "run.manifest.new", "status.json", "status.json.new")


@contextlib.contextmanager
def forgetting_refused(directory: Path) -> Iterator[None]:
    """Forget the run in `directory` when this block ends because the run was refused, or before it was accepted."""
    try:
        yield
    except RefusedRunError:
        forget_run(directory)
        raise
    finally:
        if not is_remembered(directory):
            forget_run(directory)


def forget_run(directory: Path) -> None:
    """Delete all that was downloaded for a run, and the rest of its folder unless it holds work of this machine."""
    shutil.rmtree(directory / "blobs", ignore_errors=True)
    for name in _OF_THE_RUN:
        with contextlib.suppress(OSError):
            (directory / name).unlink()
    if not _has_work(directory / "spool.db"):
        shutil.rmtree(directory, ignore_errors=True)


def _has_work(spool: Path) -> bool:
    """Whether a spool holds groups; also when it cannot be read, to be safe."""
    if not spool.exists():
        return False
    try:
        with contextlib.closing(sqlite3.connect(f"file:{spool}?mode=ro", uri=True)) as opened:
            return opened.execute("SELECT 1 FROM groups LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return True
