"""The network process: runs a transport and a node, without torch, controlled by its role over an inherited socket.

`p2prl.net.process.handle` starts it as `python -m p2prl.net.process FD`. When the role dies, the socket closes, and
this process ends too, with its daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from dataclasses import replace
from functools import partial

import psutil

from p2prl.clock import SystemClock
from p2prl.confinement.call_guard import Guard, children_bytes
from p2prl.errors import P2PRLError, UnreachableError
from p2prl.installation import this_installation
from p2prl.memory_limit import limit_memory
from p2prl.net.listen_addresses import usable_listen
from p2prl.net.ports import Transport, TransportConfig
from p2prl.net.process import bridge, control
from p2prl.net.process.join_diagnosis import unreachable
from p2prl.net.process.key_use import KeyUse
from p2prl.net.process.link_keeper import LinkKeeper
from p2prl.net.process.nearby_search import NearbySearch
from p2prl.net.process.network_config import NEW_RELAYS_STATUS, NetworkConfig
from p2prl.net.process.node_driver import NodeDriver, NodeGuard
from p2prl.net.process.open_files import links_for, raise_open_files
from p2prl.net.process.outdated_program import VersionCheck
from p2prl.net.process.role_log import logging_to_role
from p2prl.net.process.upload_budget import UploadBudget
from p2prl.net.storage.chain_blobs import ChainBlobs, WorkerBlobs
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.key_file import load_identity
from p2prl.net.storage.versions_at_start import KeptVersions
from p2prl.net.transports.interface_addresses import has_public_address, own_hosts, private_networks
from p2prl.net.transports.multiaddrs import split_peer
from p2prl.net.transports.tcp_trial import outcome_of, relays_among
from p2prl.net.transports.transport_registry import TRANSPORTS
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.swarm import events
from p2prl.swarm.groups.groups_config import PATIENCE_S
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.peers.dial_rules import is_numeric_loopback
from p2prl.swarm.peers.reachability import Loneliness, Reach, RelayWatch, foremost, reach_of

_STATUS_S = 2.0

_DIALABLE = frozenset({Role.LEARNER, Role.SEEDER})
"""Roles that others dial: with a public address on an interface of its own, one is reachable, or of little use. A
volunteer may have such an address behind a firewall; its daemon finds out."""

_RELAYS_S = 10.0

_FLUSH_S = 3.0
"""How long neighbors get to receive the role's last messages. A link that needs longer counts as dead."""

KEY_SHARED = control.Warned(
    "another machine has started with this machine's key; it stops by itself",
    "Start it with another --home, which makes a key of its own, and put both on one row with p2prl key delegate.",
)
"""For the process that started first, which goes on."""

LEARNER_SHARED = control.Warned(
    "another machine has started with this run's key; it stops by itself",
    "Do not start that folder again. It may follow this learner into a new one: p2prl learn NEW_FOLDER --standby",
)
"""For a learner that started first, as one that was promoted while the old machine was away."""

ALONE = control.Warned(
    "no peer has been linked for a minute: volunteers do not reach this learner, and what they sample grows old",
    "Check this machine's connection (p2prl doctor). Links come back by themselves.",
)
"""For a learner that has lost everybody."""

KEY_TAKEN = control.Failed(
    "IdentityError",
    "another machine that started earlier uses this key: this one stops, so that no work is done twice",
    "Start it with another --home, which makes a key of its own, and put both on one row with p2prl key delegate.",
)
"""For the process that started later."""


def _out_of_memory(limit_bytes: int) -> control.Failed:
    bound = f" its limit of {limit_bytes / 1e6:,.0f} MB" if limit_bytes else " this machine's memory"
    return control.Failed(
        "MachineError", f"the network process reached{bound}", "Start it again; if it repeats, give more with --ram-gb."
    )


class NetworkProcess:
    """Connects the control socket, the node and its driver."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, guard: Guard | None = None) -> None:
        """`guard` is a confined process's, which may not look at its daemon itself."""
        self._measure_children = partial(children_bytes, os.getpid()) if guard is None else guard.children_bytes
        self._reader = reader
        self._writer = writer
        self._clock = SystemClock()
        self._process = psutil.Process()
        self.status = 0
        """The exit status."""

    async def run(self) -> None:
        """Serve until the role hangs up or the node fails."""
        start = await self._next_message()
        if not isinstance(start, control.Start):
            return
        try:
            if start.config.memory_bytes:
                limit_memory(start.config.memory_bytes)
            await self._serve(start.config, seed=start.seed)
        except MemoryError:
            self._report(_out_of_memory(start.config.memory_bytes))
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()
        except P2PRLError as error:
            self._report(control.Failed(type(error).__name__, str(error), error.remedy))
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    async def _serve(self, config: NetworkConfig, *, seed: int) -> None:
        identity = load_identity(config.key_file)
        # A learner never leaves its own run: it stays for the peers that speak its wire version.
        self._versions = VersionCheck(
            () if config.node.role is Role.LEARNER else config.bootstrap, lambda: this_installation().update_command
        )
        self._blobs = self._chain_blobs(config)
        self._groups = DiskBlobStore(config.blob_dir / "groups")
        self._budget = UploadBudget(
            self._clock,
            cap_bytes_s=config.node.relay.upload_bytes_s,
            monthly_bytes=config.monthly_bytes,
            path=config.key_file.parent / "uploads.json",  # the limit is the worker folder's, over all its runs
        )
        started = self._clock.now()
        rng = random.Random(seed)  # noqa: S311 - shuffles neighbors and chunks; secrets never come from it
        self._node = Node(
            identity,
            Digest(config.run),
            self._blobs,
            rng,
            self._node_config(config),
            started,
            self._groups,
        )
        self._guard = NodeGuard(self._node, self._clock)
        self._node.set_networks(private_networks())
        nearby = NearbySearch(Digest(config.run), identity.peer_id) if config.reach.on_lan else None
        self._keeper = LinkKeeper(self._node, self._clock, rng, identity.peer_id, config, nearby)
        self._kept = KeptVersions(config.blob_dir)
        held = self._kept.found(config.manifest) if config.manifest and config.node.rebuilds else []
        # Not before the first download is complete: until then it may continue one of an earlier process.
        self._before_sweep = 0 if config.node.role is Role.LEARNER else len(held) + 1
        if config.manifest:
            self._node.begin(config.manifest, held)
        transport = self._transport = await self._start_transport(identity, config)
        # Bodies that an earlier process left are resumed when their volunteers announce them again, or deleted.
        sweep = asyncio.get_running_loop().call_later(PATIENCE_S, self._groups.keep_only, frozenset())
        try:
            self._driver = NodeDriver(
                self._node,
                transport,
                self._clock,
                config.run,
                self._on_event,
                budget=self._budget,
                key_use=KeyUse(identity.peer_id, started, self._on_key_shared),
            )
            self._guard.on_fault = self._driver.wake
            self._report(control.NetworkUp(self._addresses()))
            self._driver.wake()
            await self._work(transport)
        finally:
            await transport.close()
            self._budget.save()
            sweep.cancel()
            self._blobs.close()
            self._groups.close()

    def _node_config(self, config: NetworkConfig) -> NodeConfig:
        """The node's settings, with as many links as this system has files for."""
        connections = config.node.connections
        self._max_links = links_for(raise_open_files(), connections.max_links)
        named = config.bootstrap or config.listen
        local = bool(named) and all(is_numeric_loopback(address) for address in named)
        connections = replace(connections, max_links=self._max_links, local_run=connections.local_run or local)
        return replace(config.node, connections=connections)

    async def _work(self, transport: Transport) -> None:
        """Run until the role hangs up, the node fails or the transport stops."""
        parts = (
            self._driver.wait(),
            self._handle_messages(),
            self._report_status(),
            self._keeper.run(transport, self._driver),
            self._watch_relays(transport),
            transport.wait_stopped(),
        )
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._driver.close()

    async def _watch_relays(self, transport: Transport) -> None:
        """Return when this process should be started again, because every relay of its daemon has gone."""
        while True:
            await asyncio.sleep(_RELAYS_S)
            if self._relay_watch.is_due(
                self._clock.now(),
                reach=Reach(self._reach()),
                addresses=transport.addresses,
                linked=self._node.connections.linked_records(),
                is_busy=self._node.transfer_progress()[0] >= 0,
            ):
                break
        await self._driver.flush_control(_FLUSH_S)
        self.status = NEW_RELAYS_STATUS

    async def _start_transport(self, identity: Identity, config: NetworkConfig) -> Transport:
        """Start the configured transport and join the run's peers.

        When none of them answers and the run is already known from disk, start alone and try them again later.
        """
        start = TRANSPORTS.get(config.transport)
        self._is_alone = not config.bootstrap
        self._is_learner = config.node.role is Role.LEARNER
        self._is_public = config.reach.is_public or (config.node.role in _DIALABLE and has_public_address())
        lasting = self._keeper.lasting_addresses()
        relays = () if self._is_public else await relays_among((*config.bootstrap, *lasting))
        self._relay_watch = RelayWatch([split_peer(address)[1] for address in relays], self._clock.now())

        def options(bootstrap: tuple[str, ...]) -> TransportConfig:
            return TransportConfig(
                identity=identity,
                listen=usable_listen(config.listen),
                bootstrap=bootstrap,
                relays=relays,
                is_public=self._is_public,
                maps_ports=config.reach.maps_ports,
                clock=self._clock,
                guard=self._guard,
                max_links=self._max_links,
                pacer=self._budget.pacer,
            )

        try:
            return await start(options(await self._keeper.bootstrap()))
        except UnreachableError as error:
            if not config.manifest and not self._keeper.knows_peers:
                outcomes = await asyncio.gather(*map(outcome_of, config.bootstrap))
                raise unreachable(dict(zip(config.bootstrap, outcomes, strict=True))) from error
            self._is_alone = True
            self._report(control.Warned(f"{error}; continuing alone and trying again", ""))
            return await start(options(()))

    async def _handle_messages(self) -> None:
        """Apply the role's messages until it hangs up, then flush the last ones to the neighbors."""
        while (message := await self._next_message()) is not None:
            if isinstance(message, control.SetUploadCaps):
                self._budget.set_caps(cap_bytes_s=message.bytes_s, monthly_bytes=message.monthly_bytes)
                if message.bytes_s:
                    self._node.set_upload_rate(message.bytes_s)
            elif not isinstance(message, control.Start):
                answer = self._node.order(message, self._clock.now())
                if answer is not None:
                    self._report(answer)
            self._driver.wake()
        await self._driver.flush_control(_FLUSH_S)

    async def _report_status(self) -> None:
        was_spent = False
        loneliness = Loneliness()
        while True:
            status = self._status()
            if self._is_learner and loneliness.begins(status.peers, self._clock.now()):
                self._report(ALONE)
            if status.budget_spent and not was_spent:
                self._report(
                    control.Warned("the monthly upload limit is reached; no weights are uploaded until next month", "")
                )
            was_spent = status.budget_spent
            self._report(status)
            await asyncio.sleep(_STATUS_S)

    def _status(self) -> control.Status:
        relay, downloads = self._node.relay_stats, self._node.download_stats
        return control.Status(
            peers=self._node.roles(),
            received_from_source=relay.received_from_source,
            received_from_peers=relay.received_from_peers,
            received_over_circuits=relay.received_over_circuits,
            sent=relay.sent,
            wasted=relay.wasted,
            fetching=self._node.transfer_progress(),
            resident_bytes=self._process.memory_info().rss,
            daemon_bytes=self._measure_children(),
            patch_bytes=downloads.patch_bytes,
            full_bytes=downloads.full_bytes,
            version_bytes=downloads.version_bytes,
            saved_bytes=downloads.saved_bytes,
            upload_bytes_s=self._budget.rate_bytes_s,
            uploaded_bytes_month=self._budget.spent_bytes,
            budget_spent=self._budget.is_spent(),
            files=self._node.file_progress(),
            addresses=self._addresses(),
            link_peers=self._keeper.link_peers,
            reach=self._reach(),
            other_runs=len(self._node.connections.discovery.other_runs),
            knows_run=self._is_alone or self._node.connections.discovery.has_found,
        )

    def _reach(self) -> str:
        counts = self._node.connections.link_counts()
        return reach_of(self._transport.addresses, counts, own_hosts=own_hosts(), is_public=self._is_public)

    def _addresses(self) -> tuple[str, ...]:
        return foremost(self._transport.addresses, limits.MAX_ADDRESSES)

    def _on_key_shared(self, is_later: bool) -> None:
        if self._is_learner:
            self._report(bridge.LEARNER_ELSEWHERE if is_later else LEARNER_SHARED)
        else:
            self._report(KEY_TAKEN if is_later else KEY_SHARED)

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.WireMismatch):
            told = self._versions.met(event.peer, event.wire_version, neighbors=len(self._node.roles()))
            if told is not None:
                self._report(control.Warned(*told))
            return
        if isinstance(event, events.VersionReady):
            self._before_sweep -= 1
            if self._before_sweep == 0:  # what earlier processes left, and no version needs, is outside the disk quota
                self._blobs.keep_only(self._node.stored_names)
            self._kept.keep(event.raw, event.manifest)
        elif isinstance(event, events.BaseReleased):
            self._blobs.drop(event.digest)
        self._report(
            bridge.message_of(event, path_of=self._blobs.path, group_path_of=self._groups.path, status=self._status)
        )

    def _chain_blobs(self, config: NetworkConfig) -> ChainBlobs:
        loop = asyncio.get_running_loop()

        def chunk_came() -> None:  # on the store's thread
            loop.call_soon_threadsafe(self._driver.wake)

        kind = ChainBlobs if config.node.role is Role.LEARNER else WorkerBlobs
        return kind(config.blob_dir, chunk_came)

    def _report(self, message: control.FromNetwork) -> None:
        if not self._writer.is_closing():
            self._writer.write(control.pack(message))

    async def _next_message(self) -> control.ToNetwork | None:
        try:
            header = await self._reader.readexactly(control.LENGTH.size)
            return control.parse_to_network(await self._reader.readexactly(control.LENGTH.unpack(header)[0]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


async def serve_role(descriptor: int, guard: Guard | None = None) -> int:
    """Run a network process for the role at the other end of this inherited socket, until it closes. Returns the exit
    status."""
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 20)
    try:
        with logging_to_role(writer):
            process = NetworkProcess(reader, writer, guard)
            await process.run()
            return process.status
    finally:
        writer.close()
