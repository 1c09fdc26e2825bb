"""Start of work on a run: wait for its manifest, then its files, then build the engine. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

from p2prl.errors import (
    REFUSED_RUN_REMEDY,
    IntegrityError,
    RefusedRunError,
    RemoteProtocolError,
    TransportError,
)
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.join_diagnosis import no_manifest
from p2prl.protocol.envelope import body_of, open_envelope
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import RunManifest
from p2prl.protocol.run_blobs import blobs_for
from p2prl.swarm import signals

_PATIENCE_S = 60.0
"""How long a join waits for the run's manifest before it gives up: the link is dead."""

_START_S = 600.0
"""How long it waits for its own network process to begin. Beside programs that take every core that took four minutes;
a process that never begins is stopped or stuck."""

_TURN_S = 5.0
"""Most that one turn counts: more is a laptop that slept, or a clock that was set."""

T = TypeVar("T")

FindBase = Callable[[RunManifest], bytes]
"""Writes the weights of the base model that the user named into the blob directory (`signals.StartFrom`) and returns
their digest; empty when the model does not fit the run."""

Prepare = Callable[[RunManifest, Mapping[str, Path]], T]
"""Turns a run's manifest and files into a worker's engine and slot rules. Data is among the files, named as in
`p2prl/protocol/run_blobs.py`; it may be gigabytes, so it is opened and never read whole."""

OnManifest = Callable[[RunManifest, bytes], int | None]
"""Shows and stores a run before any of it is downloaded: gets its manifest and the manifest's envelope, and returns the
bytes of disk that the network process may use; None for no bound. Raises when the owner's machine takes no part."""


class RunPreparation(Generic[T]):
    """Collects the run's parts as the network process reports them, and prepares once all are here.

    Fourteen attributes, because each part arrives by itself.
    """

    def __init__(
        self,
        prepare: Prepare[T],
        on_manifest: OnManifest,
        find_base: FindBase | None = None,
        *,
        role: Role = Role.VOLUNTEER,
        runs_code: bool = False,
        waits: bool = False,
    ) -> None:
        """`find_base` looks for a base model to start from; pass it only if the network waits for the answer.

        `role` and `runs_code` decide which data is waited for, as in the node's configuration. With `waits` the run may
        take any time to appear: its learner dials this peer.
        """
        self.prepare = prepare
        self._role = role
        self._runs_code = runs_code
        self._waits = waits
        self._on_manifest = on_manifest
        self._find_base = find_base
        self._base: bytes | None = None
        self._accepted: int | None = None
        """Disk for the run, to be reported once to the network."""
        self._files: dict[str, Path] = {}
        self._searched_s = 0.0
        self._starting_s = 0.0
        self.manifest: RunManifest | None = None
        self.manifest_raw = b""
        """Its envelope."""
        self.prepared: T | None = None

    def take(self, message: control.RunKnown | control.FileReady) -> None:
        """Take one part of the run."""
        if isinstance(message, control.FileReady):
            self._files[message.name] = Path(message.path)
        elif self.manifest is None:
            self.manifest = body_of(open_envelope(message.manifest, now=None), RunManifest)
            self.manifest_raw = message.manifest
            self._accepted = self._on_manifest(self.manifest, message.manifest) or 0
            if self._find_base is not None:  # before the engine is built: never two models in memory
                self._base = self._find_base(self.manifest)
        if self.prepared is None and self.manifest is not None and self._needed(self.manifest) <= set(self._files):
            try:
                self.prepared = self.prepare(self.manifest, self._files)
            except (RemoteProtocolError, IntegrityError) as error:
                raise RefusedRunError(f"this run is refused: {error}", remedy=REFUSED_RUN_REMEDY) from error

    def _needed(self, manifest: RunManifest) -> set[str]:
        return {file.name for file in blobs_for(manifest, self._role, runs_code=self._runs_code)}

    def answer(self, network: NetworkPort) -> None:
        """Report once to the network that the run is accepted, and whether there is a base model. Until then it
        downloads nothing, and no weights."""
        if self._accepted is not None:
            network.send(signals.RunAccepted(self._accepted))
            self._accepted = None
        if self._base is not None:
            network.send(signals.StartFrom(self._base))
            self._base = None

    def count_turn(self, seconds: float, network: NetworkPort) -> None:
        """Count a turn without the run's manifest. `UnreachableError` when no peer has sent it within a minute, which
        begins once the network process is up; `TransportError` when that takes ten minutes.

        A manifest kept from an earlier start comes from the network process alone.
        """
        counted_s = min(_TURN_S, max(0.0, seconds))
        if self.manifest is not None:
            return
        if network.status is None:
            self._starting_s += counted_s
        else:
            self._searched_s += counted_s
        if self._starting_s > _START_S:
            raise TransportError(
                "the network process did not begin within ten minutes",
                remedy="Start it again when this machine is less busy, or with fewer workers on it.",
            )
        if self._searched_s > _PATIENCE_S and not self._waits:
            assert network.status is not None
            links = sum(count for _, count in network.status.peers)
            status = network.status
            raise no_manifest(links=links, other_runs=status.other_runs, knows_run=status.knows_run)
