"""A peer with a shaped link, as a process: `python -m p2prl_lab.testing.shaped_peer JSON`.

The argument is an object with `entropy`, `run_manifest`, `run`, `role`, `upload_bytes_s`, `download_bytes_s`, `folder`,
`corrupt` and `bootstrap` addresses. The product's own upload limit caps the uplink; this process shapes the downlink by
accepting frames at its rate and acknowledging them afterward. Prints one JSON line per event; reads one JSON command
per line.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from blake3 import blake3

from p2prl.clock import SystemClock
from p2prl.net.pacing import Pacer
from p2prl.net.process.node_driver import NodeDriver
from p2prl.net.process.upload_budget import UploadBudget
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.transports import framing, streams
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol import frames
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Chunk
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.swarm.events import Command, Event, PeerBanned, Send, VersionReady
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.relay_config import RelayConfig


class Corrupt(Node):
    """Serves every chunk with one byte changed."""

    def commands(self, now: float) -> list[Command]:
        return [self._spoil(command) for command in super().commands(now)]

    def _spoil(self, command: Command) -> Command:
        if not (isinstance(command, Send) and command.bulk):
            return command
        (message,) = frames.unpack(command.frame)
        assert isinstance(message, Chunk)
        spoiled = bytes((message.data[0] ^ 1,)) + message.data[1:]
        return replace(command, frame=frames.pack(msgspec.structs.replace(message, data=spoiled)))


def say(**what: Any) -> None:
    print(json.dumps({"at": time.time(), **what}), flush=True)


def shape_downlink(rate_bytes_s: float, clock: SystemClock) -> None:
    """Limit bulk frames from all peers together to that rate."""
    pacer = Pacer(clock, rate_bytes_s)

    async def serve(
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        deliver: Callable[[bytes], None],
        watch: streams.FrameWatch | None = None,  # noqa: ARG001 - its memory is not what is measured
    ) -> None:
        while True:
            length = framing.frame_length(await reader.readexactly(framing.HEADER_BYTES))
            frame = await reader.readexactly(length)
            if framing.is_bulk(frame):
                await pacer.turn(pacer.ticket(), length)
            deliver(frame)
            writer.write(framing.ACK)
            await writer.drain()

    streams.serve = serve


async def main(given: dict[str, Any]) -> None:
    clock, identity = SystemClock(), Identity(bytes.fromhex(given["entropy"]))
    role, folder = Role(given["role"]), Path(given["folder"])
    shape_downlink(given["download_bytes_s"], clock)
    store = DiskBlobStore(folder / "blobs")
    rates = RelayConfig(upload_bytes_s=given["upload_bytes_s"], download_bytes_s=given["download_bytes_s"])
    build = Corrupt if given["corrupt"] else Node
    run = Digest(bytes.fromhex(given["run"]))
    node = build(identity, run, store, random.Random(1), NodeConfig(role=role, relay=rates), clock.now())
    node.begin(bytes.fromhex(given["run_manifest"]))
    daemon_config = DaemonConfig(nat_port_map=False, auto_nat=False)
    budget = UploadBudget(clock, cap_bytes_s=given["upload_bytes_s"], monthly_bytes=0, path=folder / "uploads.json")
    transport = await HivemindTransport.start(
        identity,
        listen=("/ip4/127.0.0.1/tcp/0",),
        bootstrap=given["bootstrap"],
        daemon_config=daemon_config,
        pacer=budget.pacer,
    )

    def on_event(event: Event) -> None:
        if isinstance(event, VersionReady):
            whole = blake3(store.path(event.manifest.weights.root).read_bytes()).digest()
            say(what="ready", intact=whole == event.manifest.weights_digest)
        elif isinstance(event, PeerBanned):
            say(what="banned", peer=event.peer)

    driver = NodeDriver(node, transport, clock, run, on_event, budget=budget)
    driver.wake()
    say(what="up", peer=identity.peer_id, addresses=transport.addresses)
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        if "connect" in command:
            for address in command["connect"]:
                node.connected(await transport.connect(address), clock.now())
            driver.wake()
        elif "publish" in command:
            weights = random.Random(7).randbytes(command["publish"])
            ref = blob_of(weights, command["chunk_bytes"])
            store.add(ref, weights)
            created_ms = int(clock.now() * 1000)
            manifest = PolicyManifest(0, 0, ref, blake3(weights).digest(), b"", bytes(32), created_ms)
            say(what="published")
            node.publish(seal(identity, manifest, run=run, now=clock.now()), clock.now())
            driver.wake()
        elif "report" in command:
            stats = node.relay_stats
            _, held, total = node.transfer_progress()
            received = stats.received_from_source + stats.received_from_peers
            say(what="report", sent=stats.sent, received=received, wasted=stats.wasted, held=held, total=total)
        elif "roles" in command:
            say(what="roles", roles=dict(node.roles()))
    await driver.close()
    await transport.close()


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
