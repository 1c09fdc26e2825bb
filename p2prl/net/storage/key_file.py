"""The key file of an identity: its 16 bytes of entropy in JSON, readable by its owner alone.

The file lets its holder act as this peer, so ssh's rule applies: a file that group or others can read is refused, not
repaired, because it may have been read already.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path

from p2prl.errors import IdentityError
from p2prl.protocol.identity import ENTROPY_BYTES, Identity

FORMAT = "p2prl/key/1"
"""Format name in the file. Its number changes when the meaning of the file changes."""

_MAX_FILE_BYTES = 4096
_RESTORE = "Restore it from its twelve words: p2prl key restore"


def load_identity(path: Path) -> Identity:
    """Read the identity in `path`. Raises `IdentityError` if it is missing, accessible to others, unreadable or no
    key."""
    try:
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise IdentityError(f"the key file {path} is not a regular file", remedy=_RESTORE)
            if info.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise IdentityError(
                    f"the key file {path} is open to other users (mode {stat.S_IMODE(info.st_mode):04o})",
                    remedy=f"chmod 600 {path}",
                )
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise IdentityError(f"there is no key file at {path}", remedy=_RESTORE) from error
    except PermissionError as error:
        raise IdentityError(
            f"the key file {path} may not be read by this user", remedy=f"chown $(id -u) {path} && chmod 600 {path}"
        ) from error
    except OSError as error:
        raise IdentityError(f"the key file {path} cannot be read: {error.strerror}", remedy=_RESTORE) from error
    return _parse(data, path)


def create_identity(path: Path, identity: Identity) -> None:
    """Write a new key file in one step. Raises `IdentityError` when there is one already or it cannot be written."""
    document = {"format": FORMAT, "entropy": identity.entropy.hex(), "peer_id": identity.peer_id}
    temporary: Path | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mkstemp makes it 0600
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(json.dumps(document, indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike rename, this never replaces a key that appeared meanwhile
        _sync_folder(path.parent)
    except FileExistsError as error:
        raise IdentityError(
            f"a key file is already at {path}", remedy="Use it, or move it away before you make another."
        ) from error
    except OSError as error:
        raise IdentityError(
            f"cannot write the key file {path}: {error.strerror}", remedy="Choose a folder that you can write to."
        ) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()


def load_or_create_identity(path: Path) -> Identity:
    """Read the identity in `path`, or create it from the system's randomness if there is no such file yet."""
    if not path.exists() and not path.is_symlink():
        try:
            create_identity(path, Identity.generate(os.urandom(ENTROPY_BYTES)))
        except IdentityError:
            if not path.exists():  # otherwise another process created it first, and its key counts
                raise
    return load_identity(path)


def _parse(data: bytes, path: Path) -> Identity:
    not_a_key = IdentityError(f"{path} is not a p2prl key file", remedy=_RESTORE)
    if len(data) > _MAX_FILE_BYTES:
        raise not_a_key
    try:
        document = json.loads(data)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise not_a_key
        identity = Identity(bytes.fromhex(document["entropy"]))
    except (ValueError, KeyError, TypeError, RecursionError, IdentityError) as error:
        raise not_a_key from error
    if document.get("peer_id") != identity.peer_id:
        raise IdentityError(f"the key file {path} is damaged: its key is not that of its peer id", remedy=_RESTORE)
    return identity


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
