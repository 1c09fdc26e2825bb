"""The network process: `python -m p2prl.net.process FD`, started by `p2prl.net.process.handle`, light and without
torch.

It owns the transport and the node, and speaks `p2prl.net.process.control` with its role over an inherited socket.
When the
role dies the socket closes and this process ends too, with its daemon.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from pathlib import Path

import psutil

from p2prl.clock import SystemClock
from p2prl.errors import P2PRLError, TransportError, UnreachableError
from p2prl.net.process import bridge, control
from p2prl.net.process.bandwidth import Uplink
from p2prl.net.process.node_driver import NodeDriver
from p2prl.net.process.version_check import VersionCheck
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.kept_versions import KeptVersions
from p2prl.net.storage.key_file import load_identity
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.swarm import events
from p2prl.swarm.node import Node, NodeConfig
from p2prl.swarm.relay.relay import RelayConfig

_STATUS_S = 2.0

_LAST_WORDS_S = 3.0
"""How long neighbours get to take what the role said last. A link that needs longer is as good as dead."""

_REDIAL_S = 3.0
"""How often a node without a learner tries its bootstrap peers."""

_EAGER_S = 300.0
"""A learner gone for longer is not expected back within seconds."""

_PATIENT_REDIAL_S = 20.0
"""How often its neighbours try it from then on."""


class NetworkProcess:
    """Glue between the control socket, the node and its driver."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._clock = SystemClock()
        self._process = psutil.Process()

    async def run(self) -> None:
        """Serve until the role hangs up or the node fails."""
        start = await self._next()
        if not isinstance(start, control.Start):
            return
        try:
            await self._serve(start)
        except P2PRLError as error:
            self._tell(control.Failed(type(error).__name__, str(error), error.remedy))
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    async def _serve(self, start: control.Start) -> None:
        identity = load_identity(Path(start.key_file))
        # A learner is the run itself, and stays for whoever speaks its version.
        self._wire = VersionCheck(() if start.role == Role.LEARNER else start.bootstrap)
        self._blobs = DiskBlobStore(Path(start.blob_dir))
        self._uplink = Uplink(
            self._clock,
            cap_bytes_s=start.upload_bytes_s,
            monthly_bytes=start.monthly_bytes,
            path=Path(start.key_file).parent / "uploads.json",  # a month's bytes are the seat's, whatever the run
        )
        self._node = Node(
            identity,
            Digest(start.run),
            self._blobs,
            random.Random(start.seed),  # noqa: S311 - shuffles neighbours and chunks; secrets never come from it
            NodeConfig(
                role=Role(start.role),
                fetch_policies=start.fetch_policies,
                keep_versions=start.keep_versions,
                rebuilds=start.rebuilds,
                awaits_base=start.awaits_base,
                disk_bytes=start.disk_bytes,
                relay=RelayConfig(
                    source_patience_s=start.source_patience_s,
                    upload_bytes_s=start.upload_bytes_s,
                    download_bytes_s=start.download_bytes_s,
                ),
            ),
            self._clock.now(),
        )
        self._holdings = KeptVersions(Path(start.blob_dir))
        if start.manifest:
            self._node.begin(start.manifest, self._holdings.found(start.manifest) if start.rebuilds else ())
        transport = await self._transport(identity, start)
        try:
            transport.pacer = self._uplink.pacer
            self._driver = NodeDriver(
                self._node, transport, self._clock, start.run, self._on_event, uplink=self._uplink
            )
            self._tell(control.NetworkUp(transport.addresses))
            self._driver.wake()
            work = (self._driver.wait(), self._obey(), self._report(), self._stay_linked(transport, start.bootstrap))
            tasks = [asyncio.ensure_future(part) for part in (*work, transport.wait_stopped())]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._driver.close()
        finally:
            await transport.close()
            self._uplink.save()
            self._blobs.close()

    async def _transport(self, identity: Identity, start: control.Start) -> HivemindTransport:
        """Join the directory; a run that is known already is worked on alone until its peers are back."""
        try:
            return await HivemindTransport.start(identity, listen=start.listen, bootstrap=start.bootstrap)
        except UnreachableError as error:
            if not start.manifest:
                raise
            self._tell(control.Warned(f"{error}; going on alone and trying again", ""))
            return await HivemindTransport.start(identity, listen=start.listen)

    async def _stay_linked(self, transport: HivemindTransport, bootstrap: tuple[str, ...]) -> None:
        """Dial the bootstrap peers at the start, and again while no learner is a neighbour.

        The directory cannot stand in for this: a learner that comes back from a crash knows nobody's address, so the
        others have to come to it, and their own dialling may have backed off to a minute by then.
        """
        bereft_since = self._clock.now()
        while True:
            if "learner" in dict(self._node.roles()):
                bereft_since = self._clock.now()
            else:
                for address in bootstrap:
                    with contextlib.suppress(TransportError):
                        self._node.connected(await transport.connect(address), self._clock.now())
                        self._driver.wake()
            patient = self._clock.now() - bereft_since > _EAGER_S
            await asyncio.sleep(_PATIENT_REDIAL_S if patient else _REDIAL_S)

    async def _obey(self) -> None:
        """Carry out the role's messages until it hangs up; what it said last still reaches the neighbours."""
        while (message := await self._next()) is not None:
            bridge.apply_message(self._node, message, self._clock.now())
            self._driver.wake()
        await self._driver.say_last_words(_LAST_WORDS_S)

    async def _report(self) -> None:
        was_spent = False
        while True:
            status = self._status()
            if status.budget_spent and not was_spent:
                self._tell(control.Warned("this month's bytes are used up; weights go to nobody until the next", ""))
            was_spent = status.budget_spent
            self._tell(status)
            await asyncio.sleep(_STATUS_S)

    def _status(self) -> control.Status:
        stats, brought = self._node.relay_stats, self._node.fetch_stats
        daemons = self._process.children(recursive=True)
        daemon_bytes = 0
        for daemon in daemons:
            with contextlib.suppress(psutil.Error):
                daemon_bytes += daemon.memory_info().rss
        return control.Status(
            peers=self._node.roles(),
            received_from_source=stats.received_from_source,
            received_from_peers=stats.received_from_peers,
            sent=stats.sent,
            wasted=stats.wasted,
            fetching=self._node.transfer_progress(),
            resident_bytes=self._process.memory_info().rss,
            daemon_bytes=daemon_bytes,
            patch_bytes=brought.patch_bytes,
            whole_bytes=brought.whole_bytes,
            brought_bytes=brought.brought_bytes,
            spared_bytes=brought.spared_bytes,
            upload_bytes_s=self._uplink.rate_bytes_s,
            uploaded_bytes_month=self._uplink.spent_bytes,
            budget_spent=self._uplink.is_spent(),
        )

    def _on_event(self, event: events.Event) -> None:
        if isinstance(event, events.WireMismatch) and not self._wire.met(
            event.peer, event.wire_version, neighbours=len(self._node.roles())
        ):
            return
        if isinstance(event, events.VersionReady):
            self._holdings.keep(event.raw, event.manifest)
        elif isinstance(event, events.BaseSettled):
            self._blobs.drop(event.state)
        self._tell(bridge.message_of(event, path_of=self._blobs.path, status=self._status))

    def _tell(self, message: control.FromNetwork) -> None:
        if not self._writer.is_closing():
            self._writer.write(control.pack(message))

    async def _next(self) -> control.ToNetwork | None:
        try:
            header = await self._reader.readexactly(control.LENGTH.size)
            return control.parse_to_network(await self._reader.readexactly(control.LENGTH.unpack(header)[0]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None


async def serve_role(descriptor: int) -> None:
    """Run a network process for the role at the other end of this inherited socket, until it closes."""
    connection = socket.socket(fileno=descriptor)
    connection.setblocking(False)
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 20)
    try:
        await NetworkProcess(reader, writer).run()
    finally:
        writer.close()
