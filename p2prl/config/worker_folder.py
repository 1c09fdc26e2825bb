"""Worker folder: keys, unfinished work and weights of one worker process, locked while it runs.

    HOME/seat-1/key.json           identity: one key per worker
    HOME/seat-1/delegation         its owner, if it has another (`p2prl.config.owner_files`)
    HOME/seat-1/listed             there once join links could name this key
    HOME/seat-1/RUN/spool.db       undelivered work
    HOME/seat-1/RUN/blobs/         weights
    HOME/seat-1/RUN/run.manifest   the run manifest, once known
    HOME/seat-1/RUN/peers          peers met, to find the run again
    HOME/seat-1/RUN/status.json    state of the worker, for `p2prl status`

Each worker process claims one `seat-N` folder. Starting `p2prl join` twice claims two, each with its own key, because
two workers with one key would sample the same work slots.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import platformdirs
import psutil

from p2prl.disk_full import replace_file, write_error
from p2prl.errors import ConfigError, MachineError
from p2prl.net.storage.key_file import load_or_create_identity
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.user_home import user_home

_MOST_FOLDERS = 64
"""Workers of one kind on a machine. More are the result of a faulty restart loop."""


def default_home() -> Path:
    """`$P2PRL_HOME`, else the platform's folder for user data."""
    chosen = os.environ.get("P2PRL_HOME")
    if not chosen:
        return platform_home()
    first, *below = Path(chosen).parts
    home = user_home() if first == "~" else None  # a shell leaves it where it stands in quotation marks
    return Path(chosen).expanduser() if home is None else home.joinpath(*below)


def platform_home() -> Path:
    """The platform's folder for user data: the home when nothing chooses another. `ConfigError` without one."""
    try:
        return Path(platformdirs.user_data_dir("p2prl"))
    except RuntimeError as error:
        raise ConfigError(
            "this user has no home folder", remedy="Give a folder with --home, or set P2PRL_HOME."
        ) from error


def check_home_name(home: Path | None) -> Path | None:
    """`home` as it is, once it, or the default home where it is None, can be a folder. `ConfigError` otherwise."""
    if home is None and not os.environ.get("P2PRL_HOME"):
        return None
    remedy = "Give another folder with --home." if home is not None else "Set P2PRL_HOME to another folder."
    check_folder_name(home or default_home(), remedy=remedy)
    return home


def check_folder_name(folder: Path, *, remedy: str) -> None:
    """`ConfigError` unless a folder of this name can be: not below a file, and a text in every document."""
    whole = folder.absolute()
    try:
        str(whole).encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the name of the folder {whole} has a byte that is no UTF-8, which no document of a run can hold",
            remedy=remedy,
        ) from error
    try:
        in_the_way = next((path for path in (whole, *whole.parents) if path.exists() and not path.is_dir()), None)
    except OSError as error:
        raise ConfigError(f"{whole} cannot be a folder: {error.strerror}", remedy=remedy) from error
    if in_the_way is not None:
        raise ConfigError(f"{in_the_way} is not a folder", remedy=remedy)


def check_home(home: Path | None) -> None:
    """Raise `MachineError` unless worker folders can be made under `home`, or the default home when it is None."""
    if home is not None:
        remedy = "Give another folder with --home."
    elif os.environ.get("P2PRL_HOME"):
        remedy = "Set P2PRL_HOME to another folder."
    else:
        remedy = "Fix its permissions, or give a folder with --home."
    check_writable(home or default_home(), remedy=remedy)


def check_writable(folder: Path, *, remedy: str) -> None:
    """Raise `MachineError` unless `folder` exists or can be made, and takes new files. Leaves nothing behind.

    `ConfigError` for a name that no folder can have.
    """
    check_folder_name(folder, remedy=remedy)
    there = next((path for path in (folder, *folder.absolute().parents) if path.exists()), folder)
    try:
        # A trial tells more than the mode bits: read-only mounts and /proc refuse even root. A file, for others look
        # through the folders of a home meanwhile, and would stumble over one that is gone.
        with tempfile.TemporaryFile(prefix=".p2prl-", dir=there):
            pass
    except OSError as error:
        raise MachineError(f"cannot write to {folder}: {error.strerror}", remedy=remedy) from error


@dataclass(slots=True)
class WorkerFolder:
    """A claimed folder. The lock ends with the process."""

    directory: Path
    identity: Identity
    _lock: IO[str]

    @property
    def home(self) -> Path:
        """Folder of all worker folders."""
        return self.directory.parent

    @property
    def key_file(self) -> Path:
        """Key of this worker."""
        return self.directory / "key.json"

    def run_directory(self, run: Digest) -> Path:
        """Folder of one run's files."""
        return self.directory / run.hex()[:16]

    def was_listed(self, *, is_listed: bool) -> bool:
        """Whether join links could name this key before; noted for later starts when it `is_listed` now."""
        mark = self.directory / "listed"
        before = mark.exists()
        if is_listed and not before:
            try:
                mark.touch()
            except OSError as error:
                raise write_error(error, f"in {self.directory}") from error
        return before

    def release(self) -> None:
        """Unlock the folder for another process."""
        self._lock.close()


def make_home(home: Path) -> None:
    """Make a home that is not there, closed to other users: it names the runs. One that is there stays as it is, and
    the first file in one that cannot be made says why."""
    with suppress(OSError):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)


def claim_worker_folder(home: Path, *, kind: str = "seat") -> WorkerFolder:
    """Claim the first free worker folder under `home`, created with a key if needed."""
    make_home(home)
    for number in range(1, _MOST_FOLDERS + 1):
        directory = home / f"{kind}-{number}"
        lock = try_lock(directory)
        if lock is not None:
            try:
                return WorkerFolder(directory, load_or_create_identity(directory / "key.json"), lock)
            except BaseException:
                lock.close()
                raise
    raise MachineError(
        f"all {_MOST_FOLDERS} worker folders under {home} are in use", remedy="Stop a worker, or give another --home."
    )


def try_lock(directory: Path) -> IO[str] | None:
    """Lock a directory for this process; None when another process holds it. The lock ends with the process."""
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (directory / "lock").open("a+")
    except OSError as error:
        raise MachineError(
            f"cannot use {directory}: {error.strerror}", remedy="Fix its permissions, or use another folder."
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def holder_of(directory: Path) -> int | None:
    """Process id of the holder of a directory's lock, 0 when it is not written yet; None when the directory is free.

    The recorded process id proves nothing: it may belong to another program by now. So the lock itself is tested, which
    takes it in shared mode for some microseconds; a worker that starts just then claims the next folder.
    """
    try:
        file = (directory / "lock").open()
    except OSError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read()
            return int(text) if text.isdigit() else 0
    return None


def write_status(path: Path, status: dict[str, object]) -> None:
    """Replace a status file atomically, so that a reader never sees half of it."""
    memory = psutil.Process().memory_info().rss
    try:
        replace_file(
            path, json.dumps({"pid": os.getpid(), "resident_bytes": memory, **status}, sort_keys=True).encode()
        )
    except OSError as error:
        raise write_error(error, path) from error


def read_status(path: Path) -> dict[str, Any]:
    """Read a status file; empty if it is missing or damaged."""
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
