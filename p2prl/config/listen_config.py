"""The table `[network]` of run.toml: where the learner listens, what its join link names first, and its listing."""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.config.index_addresses import board_url, index_url
from p2prl.errors import ConfigError
from p2prl.net.listen_addresses import DEFAULT_LISTEN
from p2prl.net.transports import multiaddrs
from p2prl.protocol.join_link import needs_zone


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenConfig:
    """Addresses of the learner."""

    listen: tuple[str, ...] = DEFAULT_LISTEN
    """Multiaddrs to listen on; port 0 is replaced by a free port at the first start, which is kept."""
    bootstrap: tuple[str, ...] = ()
    """Multiaddrs of other peers to join the directory through; usually none."""
    announce: tuple[str, ...] = ()
    """Multiaddrs to name first in the join link, without a peer id: a DNS name that outlives this machine's address, as
    `/dns4/run.example.org/tcp/4001`, or the outside of a port that a router forwards."""
    list: tuple[str, ...] = ()
    """Indexes at which the run is listed in public while its learner runs, as `https://runs.example.org`; none: it is
    listed nowhere."""
    board: str = ""
    """Web address of the run's board, named in its listings, as `https://board.example.org`; empty: none is named."""

    def __post_init__(self) -> None:
        for url in self.list:
            index_url(url)
        board_url(self.board)
        for address in self.announce:
            fault = "holds a peer id" if "/p2p/" in address else ""
            if not fault:
                multiaddrs.to_bytes(address)
                fault = "works on one local network alone" if needs_zone(address) else ""
            if fault:
                raise ConfigError(
                    f"network.announce: {address[:80]!r} {fault}",
                    remedy="Name a public address or a DNS name alone; the learner's own id is added.",
                )
