"""A new folder, complete or not at all: filled under another name, then renamed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path


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
