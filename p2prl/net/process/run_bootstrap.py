"""A run's arrival at a worker: its manifest, then its files, then what the worker makes of them. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from p2prl.errors import UnreachableError
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.manifests import RunManifest

_PATIENCE_S = 60.0
"""A join that has not even found the run's manifest after this long gives up: the link is dead."""

T = TypeVar("T")

FindBase = Callable[[RunManifest], bytes]
"""Lays words that the person has where the network process looks for them (`control.StartFrom`), and returns their
digest;
empty when there are none of use."""

Prepare = Callable[[RunManifest, Mapping[str, Path]], T]
"""Turns a run's manifest and files into what a worker works with: an engine, and the meaning of the slots."""

OnManifest = Callable[[RunManifest, bytes], None]
"""Shows and keeps a run before any work: its manifest and the envelope it came in."""


class RunBootstrap(Generic[T]):
    """Collects what the network process reports of a run, and prepares once when everything is here."""

    def __init__(self, prepare: Prepare[T], on_manifest: OnManifest, find_base: FindBase | None = None) -> None:
        self.prepare = prepare
        self._on_manifest = on_manifest
        self._find_base = find_base
        self._base: bytes | None = None
        self._files: dict[str, Path] = {}
        self.manifest: RunManifest | None = None
        self.prepared: T | None = None

    def take(self, message: control.RunKnown | control.FileReady) -> None:
        """Take one message in."""
        if isinstance(message, control.FileReady):
            self._files[message.name] = Path(message.path)
        elif self.manifest is None:
            self.manifest = body_of(open_envelope(message.manifest, now=None), RunManifest)
            self._on_manifest(self.manifest, message.manifest)
            if self._find_base is not None:  # before the engine is made: never two models in memory
                self._base = self._find_base(self.manifest)
        manifest = self.manifest
        if self.prepared is None and manifest is not None and {f.name for f in manifest.files} <= set(self._files):
            self.prepared = self.prepare(manifest, self._files)

    def offer_base(self, network: NetworkPort) -> None:
        """Say, once the run is known, what there is to start from. A network that awaits it fetches nothing before."""
        if self._base is not None:
            network.send(control.StartFrom(self._base))
            self._base = None

    def check_patience(self, waited_s: float) -> None:
        """Raise `UnreachableError` when not even the manifest came within a minute."""
        if self.manifest is None and waited_s > _PATIENCE_S:
            raise UnreachableError(
                "no peer of this run answered within a minute",
                remedy="Ask for a fresh join link: the peers in this one may be gone. If this key also runs elsewhere "
                "(a copied home folder), stop one of the two: peers answer only one.",
            )
