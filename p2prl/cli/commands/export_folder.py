"""Directory of an export: written beside its final name, then renamed; never over anything but an earlier export."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p2prl.disk_full import write_error
from p2prl.errors import ConfigError, MachineError
from p2prl.quantity_text import size_text

MARKER = "p2prl_export.json"
"""Facts of the export for programs. Its presence marks a directory that a later export may replace."""

_SPARE_BYTES = 64_000_000
"""Space for the headers of weight files, the card and the ledger, which are small beside any model."""


def check_target(out: Path, *, force: bool) -> None:
    """Raise `ConfigError` unless an export may be written to `out`: absent, empty, or an earlier export to replace."""
    if _is_taken(out):
        if not _is_export(out):
            raise ConfigError(
                f"{out} exists and is not an export", remedy="Give another directory with --out; nothing was touched."
            )
        if not force:
            raise ConfigError(
                f"{out} holds an earlier export", remedy="Give --force to replace it, or another directory with --out."
            )
    for beside in (_new(out), _old(out)):
        if _is_taken(beside) and not _is_export(beside):
            raise ConfigError(f"{beside} is in the way", remedy="Move it, or give another directory with --out.")


def check_space(out: Path, size_bytes: int) -> None:
    """Raise `MachineError` when the disk of `out` has no space for an export of this size."""
    there = existing_folder(out)
    needed, free = size_bytes + _SPARE_BYTES, shutil.disk_usage(there).free
    if free < needed:
        raise MachineError(
            f"the export needs {size_text(needed)} of disk in {there} and {size_text(free)} are free",
            remedy="Free some, or give a directory on a larger disk with --out.",
        )


def existing_folder(out: Path) -> Path:
    """`out`, or the nearest folder above it that is there: a place on the disk that the export is written to."""
    return next(path for path in (out, *out.absolute().parents) if path.exists())


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """A directory to write the export into, which gets the name `out` at the end of the block; removed on any error."""
    new, old = _new(out), _old(out)
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        (new / MARKER).write_text("{}")  # an export killed from here on can be replaced
        yield new
        for path in new.iterdir():
            _sync(path)
        if _is_taken(out):
            shutil.rmtree(old, ignore_errors=True)
            out.rename(old)
        elif out.exists():
            out.rmdir()
        new.rename(out)
        _sync(out.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise write_error(error, f"the export {out}", kept="the run is unchanged") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _new(out: Path) -> Path:
    return out.with_name(out.name + ".new")


def _old(out: Path) -> Path:
    return out.with_name(out.name + ".old")


def _is_taken(path: Path) -> bool:
    """Whether there is anything at `path` besides an empty directory."""
    return path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir())))


def _is_export(path: Path) -> bool:
    """Whether an export wrote the directory, and nobody keeps folders in it: a clone of its repository holds `.git`."""
    if path.is_symlink() or not (path / MARKER).is_file():
        return False
    return not any(each.is_dir() for each in path.iterdir())


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
