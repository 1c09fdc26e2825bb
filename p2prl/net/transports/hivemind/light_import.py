"""Import of hivemind's daemon client and directory without the rest of hivemind.

`import hivemind` runs a package initializer that imports torch and its trainers: 280 MB and seconds, in a process that
only moves bytes. The modules used here (`p2p`, `dht.node`, `proto`) need none of it, but Python always runs a
parent package's `__init__` first. So the three heavy parents, `hivemind`, `hivemind.utils` and `hivemind.dht`, are
entered into `sys.modules` as empty packages that have a search path and look up the few re-exported names on demand. If
the real hivemind is already loaded, it is used as it is. After `load`, `import hivemind` elsewhere in this process
returns the empty package, and using any other name of it raises an error with the reason.

The network process is the only one that may call `load`. Measured: 39 MB resident after it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import logging
import multiprocessing
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from p2prl.errors import MachineError
from p2prl.net.transports import library_logs

VERSION = "1.1.12"
"""The release whose internal names this file and its callers rely on."""

_REMEDY = f"Install it again: pip install hivemind=={VERSION}"

# Names that the used modules import from the heavy packages, and the modules that define them.
_REEXPORTS: dict[str, dict[str, str]] = {
    "hivemind": {},
    "hivemind.dht": {},
    "hivemind.utils": {
        "MSGPackSerializer": "hivemind.utils.serializer",
        "SerializerBase": "hivemind.utils.serializer",
        "get_logger": "hivemind.utils.logging",
        "get_dht_time": "hivemind.utils.timed_storage",
    },
}


@dataclass(frozen=True, kw_only=True)
class Hivemind:
    """The parts of the library that the adapter uses; many, because no other module of the project names any."""

    daemon_path: Path
    """The `p2pd` in the wheel."""
    P2P: Any
    PeerID: Any
    DHTNode: Any
    DHTRecord: Any
    DHTID: Any
    DHTLocalStorage: Any
    DictionaryDHTValue: Any
    Multiaddr: Any
    dht_pb2: Any
    p2pd_pb2: Any
    P2PDaemonError: Any
    P2PHandlerError: Any


@cache
def load() -> Hivemind:
    """Import the library's parts, once. Raises `MachineError` when the library is missing or another release."""
    try:
        spec = importlib.util.find_spec("hivemind")
    except ValueError:  # a package without a spec, as tests leave behind
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise MachineError("hivemind, the network library, is not installed", remedy=_REMEDY)
    root = Path(spec.submodule_search_locations[0])
    if "hivemind" not in sys.modules:
        for name, exports in _REEXPORTS.items():
            sys.modules[name] = _light_package(name, root.joinpath(*name.split(".")[1:]), exports)
    try:
        with _locks_of_this_process():
            parts = _import_parts(root)
    except (ImportError, AttributeError) as error:
        raise MachineError(f"this hivemind is not release {VERSION}: {error}", remedy=_REMEDY) from error
    # hivemind writes colored lines to stderr and renames a level of the whole process. Undo both.
    logging.addLevelName(logging.WARNING, "WARNING")
    library_logs.route("hivemind")
    return parts


@contextmanager
def _locks_of_this_process() -> Iterator[None]:
    """hivemind makes locks for several processes at its import: files, which a confined process may not make."""
    shared = multiprocessing.Lock
    multiprocessing.Lock = threading.Lock  # type: ignore[assignment]
    try:
        yield
    finally:
        multiprocessing.Lock = shared


def _light_package(name: str, folder: Path, exports: dict[str, str]) -> types.ModuleType:
    package = types.ModuleType(name, f"{name} without its initializer; see {__name__}")
    package.__path__ = [str(folder)]
    package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    package.__spec__.submodule_search_locations = [str(folder)]

    def lookup(attribute: str) -> Any:
        if attribute not in exports:
            raise AttributeError(f"{name}.{attribute} is not available in the network process ({__name__})")
        return getattr(importlib.import_module(exports[attribute]), attribute)

    package.__dict__["__getattr__"] = lookup
    return package


def _import_parts(root: Path) -> Hivemind:
    p2p = importlib.import_module("hivemind.p2p")
    node = importlib.import_module("hivemind.dht.node")
    storage = importlib.import_module("hivemind.dht.storage")
    return Hivemind(
        daemon_path=root / "hivemind_cli" / "p2pd",
        P2P=p2p.P2P,
        PeerID=p2p.PeerID,
        DHTNode=node.DHTNode,
        DHTRecord=node.DHTRecord,
        DHTID=node.DHTID,
        DHTLocalStorage=storage.DHTLocalStorage,
        DictionaryDHTValue=storage.DictionaryDHTValue,
        Multiaddr=importlib.import_module("hivemind.utils.multiaddr").Multiaddr,
        dht_pb2=importlib.import_module("hivemind.proto.dht_pb2"),
        p2pd_pb2=importlib.import_module("hivemind.proto.p2pd_pb2"),
        P2PDaemonError=p2p.P2PDaemonError,
        P2PHandlerError=p2p.P2PHandlerError,
    )
