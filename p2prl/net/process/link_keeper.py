"""Link keeper: remembers peers on disk, and dials known ones while this node is short of them.

The rules are pure: `p2prl.swarm.peers.peer_memory`, `p2prl.swarm.peers.redialing` and `p2prl.swarm.peers.reachability`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine

from p2prl.clock import Clock
from p2prl.errors import P2PRLError, TransportError
from p2prl.net.ports import MeetingTransport, Transport
from p2prl.net.process.dial_resolution import resolved
from p2prl.net.process.nearby_search import NearbySearch
from p2prl.net.process.network_config import NetworkConfig
from p2prl.net.process.node_driver import NodeDriver
from p2prl.net.process.peer_list import download_apart, is_on_web, listed_peers, web_peers
from p2prl.net.storage.kept_peers import read_peers, write_peers
from p2prl.net.transports.multiaddrs import split_peer
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.join_link import reach_of
from p2prl.protocol.kinds import Role
from p2prl.swarm.node import Node
from p2prl.swarm.peers.link_peers import SHOW_LINKS, LinkPeers
from p2prl.swarm.peers.meetings import is_direct_public
from p2prl.swarm.peers.peer_memory import PeerMemory
from p2prl.swarm.peers.reachability import Detours
from p2prl.swarm.peers.redialing import Redialer
from p2prl.swarm.ports import Randomness

log = logging.getLogger("p2prl.net")

_TURN_S = 1.0
"""How often the links are looked at."""

_NOTE_S = 5.0
"""How often the linked peers' records are noted; a new peer or address is then written down at once."""

_WRITE_S = 60.0
"""How often the file is written in any case: it says when each peer was linked last."""


class LinkKeeper:
    """One node's remembered peers and redialing. Call `run` once the transport is up.

    It holds every source of addresses, because a lost link is redialed through all of them: peers named, remembered,
    found nearby, and detours.
    """

    def __init__(
        self, node: Node, clock: Clock, rng: Randomness, own: PeerId, config: NetworkConfig, nearby: NearbySearch | None
    ) -> None:
        """Reads the peers that `config.peers_file` remembers; without one they are remembered while this process lives.

        `nearby` searches the local network; None where the owner has not asked for it.
        """
        self._node = node
        self._clock = clock
        self._path = config.peers_file
        self._list = config.reach.peers_list
        self._nearby = nearby
        self._named = config.bootstrap
        named = [(split_peer(address)[1], address) for address in config.bootstrap]
        self._is_learner = config.node.role is Role.LEARNER
        self._shows_link = config.node.role in SHOW_LINKS
        self._redialer = Redialer(named, rng, clock.now(), is_learner=self._is_learner)
        self._detours = Detours()
        self._link_peers = LinkPeers()
        self.link_peers: tuple[str, ...] = ()
        """Addresses of the listed peers that a join link should name beside the learner; of learners and boards."""
        self._memory = PeerMemory(Digest(config.run), own)
        if self._path is not None:
            self._memory.restore(read_peers(self._path), clock.now())
        self._write_at = clock.now() + _WRITE_S
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def knows_peers(self) -> bool:
        """Whether there is anybody to try beside the bootstrap peers."""
        return len(self._memory) > 0

    def lasting_addresses(self) -> tuple[str, ...]:
        """Addresses of remembered peers that may relay to this node: those in roles that stay up."""
        return tuple(address for _, address in self._memory.addresses(self._node.dial_rules, lasting=True))

    async def bootstrap(self) -> tuple[str, ...]:
        """Peers to join through: those that were named, and those found on the local network. Raises `MachineError`."""
        found = [] if self._nearby is None else await self._nearby.first(self._node.dial_rules)
        return (*self._named, *(address for _, address in found))

    async def run(self, transport: Transport, driver: NodeDriver) -> None:
        """Note neighbors and redial, until cancelled."""
        note_at = self._clock.now() + _NOTE_S
        try:
            while True:
                now = self._clock.now()
                if now >= note_at:
                    note_at = now + _NOTE_S
                    self._note(now, transport.addresses, at_once=False)
                    self._replace_circuits(transport, driver, now)
                    await self._look_nearby(transport.addresses)
                self._redial(transport, driver, now)
                await asyncio.sleep(_TURN_S)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._nearby is not None:
                await self._nearby.close()
            self._note(self._clock.now(), transport.addresses, at_once=True)

    def _note(self, now: float, addresses: tuple[str, ...], *, at_once: bool) -> None:
        """Remember the linked peers, and write them down when that is due; `addresses` are this node's own."""
        self._memory.learner = self._node.connections.learner
        linked = self._node.connections.linked_records()
        self._memory.note(linked, now)
        if self._shows_link:
            # A learner's link has its own addresses, and a board's those of the link that it was started with.
            shown = addresses if self._is_learner else self._named
            is_public = any(reach_of(address) == "internet" for address in shown)
            self.link_peers = self._link_peers.update(linked, self._node.dial_rules, now, is_public=is_public)
        if self._path is not None and (self._memory.changed or at_once or now >= self._write_at):
            self._memory.changed, self._write_at = False, now + _WRITE_S
            write_peers(self._path, self._memory.to_bytes())

    async def _look_nearby(self, addresses: tuple[str, ...]) -> None:
        """Announce this node's own addresses on the local network, and note who else is there."""
        if self._nearby is not None:
            await self._nearby.announce(addresses)
            self._redialer.take_nearby(self._nearby.found(self._node.dial_rules))

    def _replace_circuits(self, transport: Transport, driver: NodeDriver, now: float) -> None:
        """Dial peers at their public addresses that are linked through circuits."""
        connections, rules = self._node.connections, self._node.dial_rules
        relayed = {
            record.peer: [
                address for address in rules.chosen(record.addresses, record.peer) if is_direct_public(address)
            ]
            for record in connections.linked_records()
            if connections.is_relayed(record.peer)
        }
        for peer, address in self._detours.due(relayed, now):
            if isinstance(transport, MeetingTransport) and connections.discovery.may_dial(peer, address, now):
                where = f"{address.partition('/p2p/')[0]}/p2p/{peer}"
                self._spawn(self._replace_circuit(where, transport, driver))

    async def _replace_circuit(self, address: str, transport: MeetingTransport, driver: NodeDriver) -> None:
        try:
            peer = await transport.replace_circuit(address)
        except TransportError as error:
            log.debug("the circuit stays: %s", error)
            return
        self._node.connected(peer, self._clock.now(), chosen=False)
        driver.wake()

    def _redial(self, transport: Transport, driver: NodeDriver, now: float) -> None:
        roles = dict(self._node.roles())
        has_learner, links = "learner" in roles, sum(roles.values())
        wants = self._redialer.wants(now, has_learner=has_learner, links=links)
        if not (wants or self._is_learner):
            return
        if self._list and self._redialer.wants_list(now):
            self._spawn(self._read_list())
        self._memory.learner = self._node.connections.learner
        due = self._redialer.due(
            self._memory.addresses(self._node.dial_rules),
            now,
            learner=self._node.connections.learner,
            has_learner=has_learner,
            links=links,
            is_linked=lambda peer: self._node.link_class(peer, now) is not None,
        )
        for address in due:
            self._spawn(self._dial(address, transport, driver))

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_list(self) -> None:
        """Read the owner's list once more; a server that gives none leaves the last one in use."""
        try:
            if is_on_web(self._list):
                listed = web_peers(await download_apart(self._list), self._list, self._node.dial_rules)
            else:
                listed = listed_peers(self._list)
        except P2PRLError as error:
            log.info("%s; the peers of the last list stay in use", error)
            return
        self._redialer.take_list([(split_peer(address)[1], address) for address in listed])

    async def _dial(self, address: str, transport: Transport, driver: NodeDriver) -> None:
        reached = False
        with contextlib.suppress(TransportError):
            # The daemon resolves names that our owner gave; what a name of a stranger leads to is checked.
            where = address if address in self._named else await resolved(address, self._node.dial_rules)
            self._node.connected(await transport.connect(where), self._clock.now())
            reached = True
            driver.wake()
        report = self._redialer.reached if reached else self._redialer.failed
        report(address, self._clock.now())
