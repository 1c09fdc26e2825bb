"""Copies on the standby's disk: the newest whole one, and the one that is being fetched.

A piece is written once its digest is checked, and a copy counts from the moment that `followed.json` names it, when
every file is on disk. Pieces that an older copy, an unfinished one or the owner's own copy of the run folder hold are
taken from there. A process that is killed at any write leaves the whole copy as it was.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from p2prl.disk_full import replace_file, write_error
from p2prl.errors import MachineError
from p2prl.learner.following.copy_list import CopiedFile, CopyHead, CopyList, piece_span, read_head, read_list
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.protocol.digests import chunk_digest
from p2prl.protocol.wire_codec import encode
from p2prl.quantity_text import size_text

_FOLLOWED, _WHOLE, _INCOMING, _LEFTOVER = "followed", "copy", "incoming", "leftover"

Place = tuple[int, int]
"""(file, piece) of a copy."""


@dataclass(frozen=True, slots=True)
class HeldCopy:
    """A whole copy on disk."""

    head: CopyHead
    listed: CopyList
    folder: Path


class HeldCopies:
    """The copies in the folder `standby` of a run folder."""

    def __init__(self, paths: LearnerPaths) -> None:
        self._own = paths.run
        self._folder = paths.standby
        self._folder.mkdir(parents=True, exist_ok=True)
        self._incoming: _Incoming | None = None
        self.whole = newest_held(paths)
        """The newest whole copy; None before the first."""

    def begin(self, head: CopyHead, raw_list: bytes) -> list[Place]:
        """Begin a copy; returns the pieces that have to be fetched. Raises `RemoteProtocolError` for a list that names
        anything but files of a run, `MachineError` when the disk has no room."""
        listed = read_list(raw_list, head)
        incoming, leftover = self._folder / _INCOMING, self._folder / _LEFTOVER
        try:
            if incoming.exists():
                shutil.rmtree(leftover, ignore_errors=True)
                incoming.rename(leftover)
            self._check_room(listed)
            incoming.mkdir()
            self._incoming = _Incoming(head, raw_list, listed, incoming)
            missing = [
                (number, piece)
                for number, file in enumerate(listed.files)
                for piece in self._incoming.take_from(number, self._twin(file), list(self._candidates(file)))
            ]
            shutil.rmtree(leftover, ignore_errors=True)
        except OSError as error:
            raise write_error(error, self._folder, kept="the copy before is whole") from error
        return missing

    def write(self, place: Place, data: bytes) -> bool:
        """Store a piece that came; False when it is not the one that the list names."""
        assert self._incoming is not None
        try:
            return self._incoming.write(place, data)
        except OSError as error:
            raise write_error(error, self._folder, kept="the copy before is whole") from error

    def finish(self) -> HeldCopy:
        """All pieces are there: make the copy the whole one."""
        assert self._incoming is not None
        incoming, self._incoming = self._incoming, None
        try:
            incoming.sync()
            target, listed = _places(self._folder, incoming.head)
            shutil.rmtree(target, ignore_errors=True)
            replace_file(listed, incoming.raw_list, private=True)
            incoming.folder.rename(target)
            replace_file(self._folder / _FOLLOWED, encode(incoming.head), private=True)
            for old in self._folder.glob(f"{_WHOLE}-*"):
                if old not in (target, listed):
                    shutil.rmtree(old) if old.is_dir() else old.unlink()
        except OSError as error:
            raise write_error(error, self._folder, kept="the copy before is whole") from error
        self.whole = HeldCopy(incoming.head, incoming.listed, target)
        return self.whole

    def _twin(self, file: CopiedFile) -> Path | None:
        """The same file in the newest whole copy, whose digests were checked when it was fetched."""
        if self.whole is None or file not in self.whole.listed.files:
            return None
        return self.whole.folder / file.path

    def _candidates(self, file: CopiedFile) -> Iterator[Path]:
        """Files that may hold pieces of this one: of the newest copy, of an unfinished one, of the owner's copy."""
        folders = [self._folder / _LEFTOVER, self._own]
        if self.whole is not None:
            folders = [self.whole.folder, self._folder / _LEFTOVER]
        for folder in folders:
            path = folder / file.path
            if path.is_file() and not path.is_symlink():
                yield path

    def _check_room(self, listed: CopyList) -> None:
        free = shutil.disk_usage(self._folder).free
        held = {} if self.whole is None else {(file.path, file.pieces) for file in self.whole.listed.files}
        new = sum(file.size_bytes for file in listed.files if (file.path, file.pieces) not in held)
        if new > free:
            raise MachineError(
                f"the run's next copy needs {size_text(new)} of disk, and {size_text(free)} are free",
                remedy=f"Free some space: {self._folder} holds two copies at times. The copy before is whole.",
            )


class _Incoming:
    """A copy that is being fetched."""

    def __init__(self, head: CopyHead, raw_list: bytes, listed: CopyList, folder: Path) -> None:
        self.head = head
        self.raw_list = raw_list
        self.listed = listed
        self.folder = folder

    def take_from(self, number: int, twin: Path | None, candidates: list[Path]) -> list[int]:
        """Take what files on this disk hold of a file; returns the pieces that they lack. `twin` is the whole file."""
        file = self.listed.files[number]
        target = self.folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        whole = twin or next((path for path in candidates if _is_whole(path, file)), None)
        if whole is not None:
            _link(whole, target)
            return []
        missing = []
        with target.open("wb") as output:
            output.truncate(file.size_bytes)
            for piece in range(file.count):
                data = next((data for path in candidates if (data := _piece_in(path, file, piece)) is not None), None)
                if data is None:
                    missing.append(piece)
                else:
                    output.seek(piece_span(file.size_bytes, piece)[0])
                    output.write(data)
        return missing

    def write(self, place: Place, data: bytes) -> bool:
        """Write a piece if it is the listed one."""
        file, piece = self.listed.files[place[0]], place[1]
        if chunk_digest(data) != file.digest_of(piece):
            return False
        with (self.folder / file.path).open("r+b") as output:
            output.seek(piece_span(file.size_bytes, piece)[0])
            output.write(data)
        return True

    def sync(self) -> None:
        """Bring all files to the disk."""
        for path in self.folder.rglob("*"):
            _sync(path)
        _sync(self.folder)


def _places(folder: Path, head: CopyHead) -> tuple[Path, Path]:
    """The folder of a whole copy, and the file of its list."""
    copy = folder / f"{_WHOLE}-{head.number}"
    return copy, copy.with_suffix(".list")


def newest_held(paths: LearnerPaths) -> HeldCopy | None:
    """The newest whole copy on a standby's disk; None before the first."""
    record = paths.standby / _FOLLOWED
    if not record.exists():
        return None
    head = read_head(record.read_bytes())
    folder, listed = _places(paths.standby, head)
    return HeldCopy(head, read_list(listed.read_bytes(), head), folder)


def pieces_lacking(copy: HeldCopy) -> list[str]:
    """Paths of a held copy that are not, byte for byte, what its list names."""
    return [file.path for file in copy.listed.files if not _is_whole(copy.folder / file.path, file)]


def _is_whole(path: Path, file: CopiedFile) -> bool:
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    return all(_piece_in(path, file, piece) is not None for piece in range(file.count))


def _piece_in(path: Path, file: CopiedFile, piece: int) -> bytes | None:
    """A piece of a file as it is here, if it is the listed one."""
    begin, length = piece_span(file.size_bytes, piece)
    with path.open("rb") as source:
        source.seek(begin)
        data = source.read(length)
    return data if chunk_digest(data) == file.digest_of(piece) else None


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
