"""The learner's join link: its addresses by reach, its file in the run folder, and its renewal as peers come and go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from p2prl.disk_full import replace_file
from p2prl.net.listen_addresses import with_one_port, with_port
from p2prl.net.process import control
from p2prl.net.process.passing_port import PassingPort
from p2prl.protocol import limits
from p2prl.protocol.join_link import as_wide, needs_zone, peers_of, reach_of

if TYPE_CHECKING:
    from p2prl.config.new_run import RunFolder
    from p2prl.net.process.bridge import NetworkPort


_SHOW_S = 600.0
"""A link that changes is written at once, and shown no more often than this: each one works for days. One that names
peers is shown at once after one that named the learner alone."""


class LearnerLink:
    """The link of a run folder."""

    def __init__(
        self,
        folder: RunFolder,
        show: Callable[[str], None],
        monotonic: Callable[[], float] = time.monotonic,
        via: Sequence[str] = (),
    ) -> None:
        """`show` gets a link that is new; `monotonic` reads a clock in seconds. `via` are peers that the run's owner
        has named: every link names them, from the first on."""
        self._via = tuple(via)
        self._monotonic = monotonic
        self._folder = folder
        self._show = show
        self._own: tuple[str, ...] = ()
        self._peers: tuple[str, ...] = ()
        self._shown, self._shown_at, self._shown_peers = "", float("-inf"), False
        self.text = ""
        """The link; empty until the network is up."""

    def begin(self, addresses: tuple[str, ...]) -> str:
        """The network is up at these addresses. Keeps the port for the next start, and returns the link."""
        ports = [parts[4] for address in addresses if (parts := address.split("/"))[3:4] == ["tcp"]]
        if ports:
            (self._folder.directory / "port").write_text(ports[0] + "\n")
        announced = (
            f"{address}/p2p/{self._folder.identity.peer_id}" for address in self._folder.settings.network.announce
        )
        self._own = (*announced, *addresses)
        self._write()
        self._note_shown()
        return self.text

    def local(self, addresses: tuple[str, ...]) -> str:
        """The link for this machine alone, where some of the `addresses` that it listens at are its own."""
        own = tuple(each for each in addresses if reach_of(each) == "machine")
        return str(self._folder.link(own or addresses))

    def reach_warning(self) -> str:
        """See `reach_warning`."""
        return reach_warning(self._named, str(self._folder.link(())))

    def take(self, status: control.Status) -> None:
        """The network's newest state."""
        if not self._own:
            return
        if status.link_peers != self._peers:
            self._peers = status.link_peers
            self._write()
        is_due = self._monotonic() - self._shown_at >= _SHOW_S or (bool(self._peers) and not self._shown_peers)
        if self.text != self._shown and is_due:
            self._note_shown()
            self._show(self.text)

    def around(self, port: NetworkPort) -> NetworkPort:
        """The port for the learner."""
        return WatchedPort(port, self.take)

    @property
    def _named(self) -> tuple[str, ...]:
        return link_addresses(self._own, tuple(dict.fromkeys((*self._via, *self._peers))))

    def _note_shown(self) -> None:
        self._shown, self._shown_at, self._shown_peers = self.text, self._monotonic(), bool(self._peers)

    def _write(self) -> None:
        link = str(self._folder.link(self._named))
        if link == self.text:
            return
        self.text = link
        replace_file(self._folder.link_file, f"{link}\n".encode())


class WatchedPort(PassingPort):
    """Everything passes; states are looked at."""

    def __init__(self, port: NetworkPort, on_status: Callable[[control.Status], None]) -> None:
        super().__init__(port)
        self._on_status = on_status

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        messages = self._port.poll(timeout_s)
        for message in messages:
            if isinstance(message, control.Status):
                self._on_status(message)
        return messages


def kept_listen(folder: RunFolder, listen: tuple[str, ...]) -> tuple[str, ...]:
    """`listen`, or the addresses of `run.toml` with the port the learner had before, so that old links stay valid.

    At the first start IPv4 and IPv6 get one port: the next start has one number for both.
    """
    port_file = folder.directory / "port"
    port = port_file.read_text().strip() if port_file.exists() else ""
    wanted = listen or folder.settings.network.listen
    if not port.isdigit():
        return with_one_port(wanted)
    return with_port(wanted, int(port))


_MOST_OWN = 4
"""Addresses of the learner in a link: with three peers it still fits a chat message."""


def shareable(addresses: tuple[str, ...]) -> tuple[str, ...]:
    """`addresses` without those that need a zone, and without loopback ones, which would mean the reader's own machine,
    unless there are no others."""
    dialable = tuple(address for address in addresses if not needs_zone(address))
    return tuple(address for address in dialable if reach_of(address) != "machine") or dialable


def link_addresses(own: tuple[str, ...], peers: tuple[str, ...]) -> tuple[str, ...]:
    """The addresses of a link: the learner's shareable ones, of widest reach first, then those of listed peers.

    An address of the learner's through a relay names the relay too, so it takes one of those peers. Where the learner
    can be dialed from the internet, private addresses of others are left out.
    """
    reaches = ("internet", "network", "machine")
    listed = frozenset[str]().union(*map(peers_of, peers))
    named = [a for a in own if "/p2p-circuit" not in a or peers_of(a.partition("/p2p-circuit")[0]) <= listed]
    widest = sorted(dict.fromkeys(shareable(tuple(named))), key=lambda address: reaches.index(reach_of(address)))
    peers = as_wide(peers, widest)
    room = _MOST_OWN if peers else limits.MAX_ADDRESSES
    return (*widest[:room], *peers)[: limits.MAX_ADDRESSES]


def reach_warning(addresses: tuple[str, ...], bare_link: str) -> str:
    """Warning for the operator when a link does not work everywhere; empty otherwise. `bare_link` names no peer."""
    reaches = {reach_of(address) for address in addresses}
    if not reaches:
        return "This link works nowhere: none of the learner's addresses is one that others can dial."
    if "internet" in reaches:
        return ""
    if "network" in reaches:
        return (
            "This link works on this local network only: none of its addresses is public. For others, run\n"
            f"    p2prl seed '{bare_link}' --listen /ip4/0.0.0.0/tcp/443 --listen /ip6/::/tcp/443\n"
            "on any rented machine with a public address, and start this learner again with the --via that it prints."
        )
    return "This link works on this machine only: the learner listens only on a loopback address."
