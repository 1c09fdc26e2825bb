"""Ledger source of a board that joins a swarm by its link: a network process and a thread around the follower."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from pathlib import Path

from p2prl.clock import Clock
from p2prl.errors import MachineError, P2PRLError, RemoteProtocolError
from p2prl.net.listen_addresses import DEFAULT_LISTEN
from p2prl.net.process.handle import NetworkHandle
from p2prl.net.process.network_config import NetworkConfig
from p2prl.protocol.join_link import JoinLink
from p2prl.protocol.kinds import Role
from p2prl.scoreboard.ledger.ledger_follower import LedgerFollower
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.ledger_store import LedgerStore
from p2prl.scoreboard.ledger.signed_head import Witness
from p2prl.swarm.node_config import NodeConfig

log = logging.getLogger("p2prl.scoreboard")

_POLL_S = 0.25
"""Longest wait for a message of the network process, seconds; bounds how long `close` takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SwarmSourceConfig:
    """How a board joins a run."""

    link: JoinLink
    """The run's join link. The page shows it with the learner and the listed peers of today."""
    key_file: Path
    """Identity of this peer; used only for its peer id, since a board signs nothing."""
    folder: Path
    """Folder of the stored ledger; one folder per run."""
    listen: tuple[str, ...] = DEFAULT_LISTEN
    """Multiaddrs to listen on, so that other boards can fetch the ledger here."""


class SwarmSource:
    """Follows the ledger of a swarm and serves it to other peers. Close it to leave the swarm."""

    def __init__(self, config: SwarmSourceConfig, *, clock: Clock) -> None:
        """Verify the stored ledger, then join in the background. Raises `MachineError` or `ConfigError`."""
        self._clock = clock
        self._store = LedgerStore(config.folder / "ledger.db", run=config.link.run)
        self._follower = LedgerFollower(self._store, run=config.link.run, join_link=config.link)
        self._failure: P2PRLError | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._network = NetworkHandle(
            NetworkConfig(
                key_file=config.key_file,
                run=config.link.run,
                node=NodeConfig(role=Role.BOARD, fetch_policies=False),
                blob_dir=config.folder / "blobs",
                listen=config.listen,
                bootstrap=config.link.bootstrap,
                peers_file=config.folder / "peers",
                manifest=self._store.manifest,
            ),
            on_start=self._introduce,
        )
        self._thread = threading.Thread(target=self._run, name="p2prl-board", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Leave the swarm and close the ledger."""
        self._closing.set()
        self._thread.join()
        self._network.close()
        with self._lock:
            self._store.close()

    def snapshot(self) -> Snapshot:
        """The ledger entries received so far."""
        with self._lock:
            return self._follower.snapshot()

    def entries(self, from_height: int, limit: int) -> list[bytes]:
        """Verified entries from a height on."""
        with self._lock:
            return self._follower.entries(from_height, limit)

    def witnesses(self) -> tuple[Witness, ...]:
        """Countersignatures received so far."""
        with self._lock:
            return self._follower.witnesses()

    def failure(self) -> P2PRLError | None:
        """The error that ended this board's connection to the swarm, if there was one."""
        return self._failure

    def _introduce(self, network: NetworkHandle) -> None:
        with self._lock:
            messages = self._follower.introduce()
        for message in messages:
            network.send(message)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._turn()
        except P2PRLError as error:
            self._failure = error
        except Exception as error:  # the service's outermost loop: the page must show that it no longer updates
            log.exception("the board's thread ended")
            self._failure = MachineError(
                f"the board failed: {error!r}", remedy="Restart it; if it fails again, report its output."
            )

    def _turn(self) -> None:
        for message in self._network.poll(_POLL_S):
            try:
                with self._lock:
                    answers = self._follower.receive(message, self._clock.now())
            except RemoteProtocolError as error:
                log.warning("a message was refused: %s", error)
                continue
            for answer in answers:
                self._network.send(answer)
        with self._lock:
            questions = self._follower.handle_timer(self._clock.now())
        for question in questions:
            self._network.send(question)
