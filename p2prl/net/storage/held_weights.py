"""Weights of versions that a worker holds: each in a file of its own, or all in one weight chain."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from pathlib import Path
from typing import BinaryIO

from p2prl.errors import IntegrityError, StaleWorkError
from p2prl.net.storage.chain_blobs import CHAIN_FOLDER
from p2prl.net.storage.chain_reader import ChainReader


def open_weights(path: Path) -> memoryview:
    """The weights of a version, mapped. `path` is where its blob is, unless the chain in the same folder holds it.

    They are not in memory twice, and do not change while the view lives: a file that becomes part of the chain, and may
    be rewritten then, is locked against that. `FileNotFoundError` when they are gone, or older than what the chain's
    file holds; `IntegrityError` when they are damaged.
    """
    with contextlib.suppress(FileNotFoundError):
        return _mapped(path)
    chain, version = _found(path)
    try:
        return chain.view_of(version)
    except StaleWorkError as error:
        raise FileNotFoundError(str(error)) from error


def read_weights(path: Path) -> bytes:
    """The weights of any version that is held, in memory. Raises as `open_weights`."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        if _is_named(file, path):
            return file.read()
    chain, version = _found(path)
    try:
        return chain.read(version, 0, chain.size_bytes)
    except StaleWorkError as error:
        raise FileNotFoundError(str(error)) from error


def has_weights(path: Path) -> bool:
    """Whether `open_weights` would find them."""
    return path.is_file() or _version_in(ChainReader(path.parent / CHAIN_FOLDER), path) is not None


def _mapped(path: Path) -> memoryview:
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        if not _is_named(file, path):
            raise FileNotFoundError(f"{path} has become part of a weight chain")
        try:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError as error:
            raise IntegrityError("its weights file is empty") from error


def _is_named(file: BinaryIO, path: Path) -> bool:
    """Whether an open, locked file still has its name: else it is the chain's, with other weights perhaps."""
    return os.path.samestat(path.stat(), os.fstat(file.fileno()))


def _found(path: Path) -> tuple[ChainReader, int]:
    chain = ChainReader(path.parent / CHAIN_FOLDER)
    version = _version_in(chain, path)
    if version is None:
        raise FileNotFoundError(f"{path} is neither a file nor a version of a weight chain")
    return chain, version


def _version_in(chain: ChainReader, path: Path) -> int | None:
    """The version of a chain whose weights a blob would have, by its name. Versions with equal weights are one blob."""
    state = chain.state
    if state is None:
        return None
    return max((version for version, root in state.roots.items() if root.hex() == path.name), default=None)
