"""Search of the local network for peers of a run, and this node's own announcement there, when its owner asked for it.

The rules are pure: `p2prl.swarm.peers.nearby_peers`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from p2prl.net.ports import LocalNetwork
from p2prl.net.transports.local_network import Answer, start_mdns
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.swarm.peers.nearby_peers import SERVICE, NearbyPeers, announcement, hosts_and_port, name_of

log = logging.getLogger("p2prl.net")

_FIRST_S = 3.0
"""Longest wait for a first answer at the start: multicast DNS answers within a second, and repeats a lost question."""


class NearbySearch:
    """One node's search. Call `close` at the end."""

    def __init__(self, run: Digest, own: PeerId, start: Callable[[str, Answer], LocalNetwork] = start_mdns) -> None:
        """`start` begins a search for a service."""
        self._run = run
        self._own = own
        self._start = start
        self._peers = NearbyPeers(run, own)
        self._network: LocalNetwork | None = None
        self._announced: tuple[list[str], int] = ([], 0)

    async def first(self, rules: DialRules) -> list[tuple[PeerId, str]]:
        """Begin, and return who is found within three seconds. Raises `MachineError`."""
        found = asyncio.Event()

        def take(properties: Mapping[bytes, bytes | None], hosts: Sequence[str], port: int) -> None:
            if self._peers.note(properties, hosts, port):
                found.set()

        self._network = self._start(SERVICE, take)
        try:
            async with asyncio.timeout(_FIRST_S):
                await found.wait()
        except TimeoutError:
            log.debug("nobody of this run answered on the local network")
        return self.found(rules)

    def found(self, rules: DialRules) -> list[tuple[PeerId, str]]:
        """Peers found so far, and where to dial them."""
        return self._peers.addresses(rules)

    async def announce(self, addresses: Sequence[str]) -> None:
        """Say that this node listens at its multiaddrs, once they are known."""
        hosts, port = place = hosts_and_port(addresses)
        if self._network is None or not port or place == self._announced:
            return
        self._announced = place
        await self._network.announce(name_of(self._own), announcement(self._run, self._own), hosts, port)

    async def close(self) -> None:
        """Take the announcement back."""
        if self._network is not None:
            await self._network.close()
