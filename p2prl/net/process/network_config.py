"""Settings of a node's network process, which its role makes and sends in `control.Start`; and its program."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from p2prl.confinement.children import Program
from p2prl.net.listen_addresses import DEFAULT_LISTEN
from p2prl.swarm.node_config import NodeConfig

NEW_RELAYS_STATUS = 3
"""Exit status of a network process that is to be started again, to have other relay candidates: no failure."""


def network_program(own: Path | None = None, sockets: Path | None = None) -> Program:
    """The program; with `own` (its worker's folder) and `sockets` (its daemon's), confined to these two.

    Ctrl-C in the terminal is the role's to handle; it closes the socket.
    """
    folders = () if own is None or sockets is None else (str(own), str(sockets))
    return Program(
        command=(sys.executable, "-m", "p2prl.net.process", *folders),
        extra={"OMP_NUM_THREADS": "1"},
    )


NETWORK_MEMORY_BYTES = 1 << 30
"""Private memory of a worker's network process, and of its daemon: 37 and 84 MB were measured at rest, and 206 MB more
under a flood of half frames."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReachOptions:
    """What the user says about how others reach this machine, and it them."""

    is_public: bool = False
    """Others can dial it: it need not find that out, relays to those that cannot be dialed, and is listed: join links
    may name it. Learners and seeders with a public address know that they can be dialed."""
    maps_ports: bool = True
    """It may ask the home router for a port (UPnP, NAT-PMP)."""
    on_lan: bool = False
    """It says on the local network that it is here, and tries others of its run that do."""
    peers_list: str = ""
    """Web address of a list of further peers, read again while the learner is not found; empty for none. A learner's
    may be a file, and is read again in any case."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkConfig:
    """Network settings of a role: those of the node, and those of its network process."""

    key_file: Path
    """Identity of this peer."""
    run: bytes
    """Digest of the run manifest's envelope."""
    node: NodeConfig
    """Settings of the node. Its `relay` holds the upload cap and the download rate."""
    blob_dir: Path
    """Folder of weights and patches; owned by the network process."""
    listen: tuple[str, ...] = DEFAULT_LISTEN
    """Multiaddrs to listen on."""
    bootstrap: tuple[str, ...] = ()
    """Peers to join through; empty only for the first peer of a run."""
    peers_file: Path | None = None
    """File of the peers met, to find the run again after a restart; None forgets them."""
    manifest: bytes = b""
    """The run manifest's envelope, if it is on disk already; otherwise empty."""
    monthly_bytes: int = 0
    """Most bytes of chunks uploaded in a calendar month; 0 means no limit."""
    memory_bytes: int = 0
    """Most private memory of the network process, and of its daemon; 0 sets no limit."""
    reach: ReachOptions = ReachOptions()
    transport: str = "hivemind"
    """Name of the transport in `p2prl.net.transports.transport_registry`."""
