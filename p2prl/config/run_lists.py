"""Lists of a machine's owner: blocked owners and runs, allowed owners, and trusted indexes.

HOME/runs.json   written by `p2prl runs block|allow|trust`, and by `join --any` for a run that breaks the rules
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from p2prl.config.index_addresses import index_url
from p2prl.disk_full import replace_file, write_error
from p2prl.errors import ConfigError, IdentityError
from p2prl.protocol.identity import PeerId, public_key_of
from p2prl.protocol.join_link import is_link, parse_link
from p2prl.protocol.listing import is_run_id, run_id

_MOST_BYTES = 1 << 20
_MOST_ENTRIES = 4_096

ListName = Literal["blocked", "allowed", "indexes"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An entry of a list."""

    id: str
    """Peer id of an owner, digest of a run, or address of an index."""
    why: str = ""


class RunLists(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lists."""

    blocked: tuple[Entry, ...] = ()
    """Owners and runs that `join --any` never takes."""
    allowed: tuple[Entry, ...] = ()
    """Owners whose runs alone it takes; none: all."""
    indexes: tuple[Entry, ...] = ()
    """Indexes that are asked where no option names one."""

    def ids(self, name: ListName) -> frozenset[str]:
        """The ids of a list."""
        return frozenset(entry.id for entry in getattr(self, name))


def load_lists(home: Path) -> RunLists:
    """The lists under a home. `ConfigError` for a damaged file."""
    path = home / "runs.json"
    try:
        with path.open("rb") as file:
            lists = msgspec.json.decode(file.read(_MOST_BYTES), type=RunLists)
        for entry in lists.indexes:
            index_url(entry.id)
    except FileNotFoundError:
        return RunLists()
    except ConfigError as error:
        raise ConfigError(f"{path} is damaged: {error}", remedy=f"Correct or delete {path}.") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", remedy="Fix its permissions.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is damaged: {error}", remedy=f"Correct or delete {path}.") from error
    return lists


def change_list(home: Path, name: ListName, identity: str, *, why: str = "", remove: bool = False) -> RunLists:
    """Add an entry to a list, or remove it, and return the lists."""
    lists = load_lists(home)
    kept = tuple(entry for entry in getattr(lists, name) if entry.id != identity)
    if len(kept) >= _MOST_ENTRIES:
        raise ConfigError(f"the list has {_MOST_ENTRIES:,} entries", remedy="Remove some first, with --remove.")
    changed = msgspec.structs.replace(lists, **{name: kept if remove else (*kept, Entry(id=identity, why=why))})
    path = home / "runs.json"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, msgspec.json.format(msgspec.json.encode(changed)) + b"\n", private=True)
    except OSError as error:
        raise write_error(error, path) from error
    return changed


def run_or_owner(text: str) -> str:
    """The digest of a run, from itself or a join link, or the peer id of an owner. `ConfigError` for anything else."""
    text = text.strip()
    if is_link(text):
        return run_id(parse_link(text, needs_peer=False).run)
    return text if is_run_id(text) else owner_id(text)


def owner_id(text: str) -> str:
    """The peer id of an owner. `ConfigError` for anything else: names are free for everybody to take."""
    try:
        public_key_of(PeerId(text.strip()))
    except IdentityError as error:
        raise ConfigError(
            f"{text[:80]!r} is neither an owner's id nor a run's", remedy="Take one that p2prl runs shows, whole."
        ) from error
    return text.strip()


def asked_indexes(home: Path, named: list[str] | None) -> tuple[str, ...]:
    """The indexes to ask: those named, else those trusted. `ConfigError` when there is none."""
    urls = tuple(dict.fromkeys(index_url(url) for url in named or ())) or tuple(
        entry.id for entry in load_lists(home).indexes
    )
    if not urls:
        raise ConfigError(
            "no index of runs is known here",
            remedy="Name one with --index https://…, or keep one: p2prl runs trust https://…",
        )
    return urls
