"""The mirror of a run's ledger in a worker's folder: which workers keep one, and whose key countersigns it."""

from __future__ import annotations

from p2prl.clock import SystemClock
from p2prl.config.machine_limits import DiskPlan
from p2prl.config.worker_folder import WorkerFolder
from p2prl.net.process.bridge import NetworkPort
from p2prl.protocol.join_link import JoinLink
from p2prl.scoreboard.ledger.mirror import MirroringPort

FILE_SHARE = 0.8
"""Part of the mirror's disk that entries may take: the rest is SQLite's."""


class LedgerMirror:
    """Wraps a worker's network once it is made, and begins once the owner has accepted the run."""

    def __init__(self, worker: WorkerFolder, link: JoinLink, *, countersigns: bool = False) -> None:
        self._worker = worker
        self._link = link
        self._countersigns = countersigns
        self._port: MirroringPort | None = None

    def around(self, port: NetworkPort) -> NetworkPort:
        """The port for the worker."""
        self._port = MirroringPort(
            port,
            self._worker.run_directory(self._link.run) / "ledger.db",
            run=self._link.run,
            clock=SystemClock(),
            signer=self._worker.identity if self._countersigns else None,
        )
        return self._port

    def begin(self, plan: DiskPlan) -> None:
        """The owner has accepted the run, with this much disk."""
        if self._port is not None:
            self._port.begin(int(FILE_SHARE * plan.mirror_bytes))
