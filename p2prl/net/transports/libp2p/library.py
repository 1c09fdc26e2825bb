"""Lazy imports of py-libp2p's names, when a transport starts."""

from __future__ import annotations

import importlib
import importlib.util
import sys

from p2prl.errors import ConfigError, MachineError
from p2prl.installation import install_command
from p2prl.net.transports import library_logs


class Library:
    """The parts of py-libp2p and trio in use."""

    def __init__(self) -> None:
        """Raises `ConfigError` when the library is absent, `MachineError` when hivemind is loaded: both register the
        same protobuf names."""
        if "hivemind" in sys.modules:
            raise MachineError("hivemind and libp2p cannot share a process", remedy="Start a process for each.")
        if importlib.util.find_spec("libp2p") is None:
            raise ConfigError("py-libp2p is not installed", remedy=install_command("libp2p"))
        load = importlib.import_module
        self.trio = load("trio")
        self.new_host = load("libp2p").new_host
        self.ed25519 = load("libp2p.crypto.ed25519")
        self.x25519 = load("libp2p.crypto.x25519")
        self.noise = load("libp2p.security.noise.transport")
        self.multiaddr = load("multiaddr").Multiaddr
        self.peer_info = load("libp2p.peer.peerinfo").info_from_p2p_addr
        self.peer_id = load("libp2p.peer.id").ID
        self.failures: tuple[type[BaseException], ...] = (
            load("libp2p.exceptions").BaseLibp2pError,
            self.trio.BrokenResourceError,
            self.trio.ClosedResourceError,
            self.trio.EndOfChannel,
            OSError,
            EOFError,
            ValueError,  # addresses and states, depending on where a connection died
        )
        """What a connection that broke may raise."""
        library_logs.route("libp2p")
