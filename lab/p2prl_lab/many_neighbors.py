"""Link a node with a thousand neighbors at once, and count the frames and links that it loses.

    python -m p2prl_lab.many_neighbors --json                       # 1,024 neighbors; half a minute
    python -m p2prl_lab.many_neighbors --neighbors 128 --seconds 8

The node, its transport and its streams are the product's, with limits as in a run. Its daemon is a stub, which plays
all neighbors over the daemon's own sockets: each greets the node in the same moment, repeats that every ten seconds,
and takes what the node sends. The node is a learner that publishes versions, so that it greets everybody again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from p2prl.clock import SystemClock
from p2prl.errors import TransportError
from p2prl.net.process.node_driver import NodeDriver, NodeGuard
from p2prl.net.process.open_files import links_for, raise_open_files
from p2prl.net.transports import framing, multiaddrs, streams
from p2prl.net.transports.hivemind import light_import
from p2prl.net.transports.hivemind.daemon import Daemon, read_message, sized_message
from p2prl.net.transports.hivemind.daemon_config import DAEMON_VARIABLE, DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol import frames, wire_version
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity, PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Hello
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm.events import Event, PeersChanged
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs

_AS_DAEMON = "--as-daemon"
_PLAN = "P2PRL_MANY_NEIGHBORS"
"""Environment variable of the stub: its plan, as JSON."""

_HELLO_S = 10.0
_VERSIONS = 3
_LINKING_S = 40.0
"""How long the neighbors may take to be linked: a second, and many more where other work starves them."""

_FLUSH_S = 40.0
_MOST_CONNECTIONS = 4_096


class StubDaemon:
    """The daemon's sockets, and behind them all neighbors of one node."""

    def __init__(self, plan: dict[str, Any], control: str) -> None:
        self._plan = plan
        self._control = control
        self._pb = light_import.load().p2pd_pb2
        self._tasks: set[asyncio.Task[None]] = set()
        self.figures = {"greetings": 0, "greetings_lost": 0, "frames_taken": 0}

    async def run(self) -> None:
        """Serve until SIGTERM."""
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        server = await asyncio.start_unix_server(self._answer, self._control, backlog=_MOST_CONNECTIONS)
        print("Peer ID: stub", flush=True)
        await ended.wait()
        server.close()
        self.save()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def save(self) -> None:
        """Leave the figures behind."""
        Path(self._plan["report"]).write_text(json.dumps(self.figures))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pb = self._pb
        with contextlib.suppress(OSError, EOFError):
            request = pb.Request()
            request.ParseFromString(await read_message(reader))
            reply = pb.Response(type=pb.Response.OK)
            if request.type == pb.Request.IDENTIFY:
                reply.identify.CopyFrom(pb.IdentifyResponse(id=b"", addrs=[multiaddrs.to_bytes("/ip4/10.0.0.1/tcp/1")]))
            elif request.type == pb.Request.STREAM_OPEN:
                info = pb.StreamInfo(peer=request.streamOpen.peer, addr=b"", proto=framing.FRAME_PROTOCOL)
                reply.streamInfo.CopyFrom(info)
            writer.write(sized_message(reply.SerializeToString()))
            await writer.drain()
            if request.type == pb.Request.STREAM_OPEN:
                await streams.serve(reader, writer, self._take)
            elif request.type == pb.Request.STREAM_HANDLER:
                path = os.fsdecode(request.streamHandler.addr[3:])
                for number in range(self._plan["neighbors"]):
                    task = asyncio.create_task(self._neighbor(number, path))
                    self._tasks.add(task)
        writer.transport.abort()

    def _take(self, _: bytes) -> None:
        self.figures["frames_taken"] += 1

    async def _neighbor(self, number: int, path: str) -> None:
        identity = identity_of(f"neighbor {number}")
        info = self._pb.StreamInfo(
            peer=multiaddrs.multihash_of(identity.peer_id),
            addr=multiaddrs.to_bytes(f"/ip4/44.{number >> 8}.{number & 255}.1/tcp/4001"),
            proto=framing.FRAME_PROTOCOL,
        )

        async def open_stream() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(sized_message(info.SerializeToString()))
            return reader, writer

        stream = streams.FrameStream(open_stream)
        while True:
            self.figures["greetings"] += 1
            now_ms = int(time.time() * 1000)
            run = bytes.fromhex(self._plan["run"])
            hello = Hello(wire_version.WIRE_VERSION, run, int(Role.VOLUNTEER), now_ms, -1, 0)
            try:
                async with asyncio.timeout(_HELLO_S):
                    await stream.send(frames.pack(hello))
            except (TransportError, TimeoutError):
                self.figures["greetings_lost"] += 1
                stream = streams.FrameStream(open_stream)
            await asyncio.sleep(_HELLO_S)


class NoDirectory:
    """A directory in which nobody is found."""

    async def introduce(self, peer: PeerId) -> None:
        """Nothing to do."""

    async def put(self, *_: object) -> bool:
        """Pretend that it is stored."""
        return True

    async def get(self, _: bytes) -> dict[PeerId, bytes]:
        """Nothing."""
        return {}


class CountingTransport(HivemindTransport):
    """The product's transport; counts frames."""

    sent = failed = 0

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        """Send and count."""
        try:
            await super().send(peer, frame, timeout_s=timeout_s)
        except TransportError:
            self.failed += 1
            raise
        self.sent += 1

    async def accept_streams(self) -> None:
        """Let the peers in."""
        await self._daemon.handle_streams(framing.FRAME_PROTOCOL, self._inbound.accept)


async def measure(neighbors: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Run one node with that many neighbors, for `seconds` after they are linked, and report."""
    clock, identity = SystemClock(), identity_of("learner")
    manifest = seal(identity, run_manifest_of(identity, weight_bytes=9_000), run=bytes(32), now=clock.now())
    run, store = envelope_digest(manifest), MemoryBlobs()
    node = Node(identity, run, store, random.Random(1), NodeConfig(role=Role.LEARNER), clock.now())  # noqa: S311
    node.begin(manifest)
    plan = {"neighbors": neighbors, "run": run.hex(), "report": str(folder / "stub.json")}
    with _environment({_PLAN: json.dumps(plan), DAEMON_VARIABLE: str(_stub_binary(folder))}):
        daemon = await Daemon.start(identity, DaemonConfig())
    directory: Any = NoDirectory()
    transport = CountingTransport(
        daemon,
        directory,
        pacer=None,
        guard=NodeGuard(node, clock),
        max_links=links_for(raise_open_files(), NodeConfig(role=Role.LEARNER).connections.max_links),
    )
    counts: list[int] = []

    def note(event: Event) -> None:
        if isinstance(event, PeersChanged):
            counts.append(sum(count for _, count in event.roles))

    driver = NodeDriver(node, transport, clock, run, note)
    began = time.monotonic()
    try:
        await transport.accept_streams()
        driver.wake()
        linked_s: float | None = None
        published, previous = 0, b""
        while (elapsed := time.monotonic() - began) < (_LINKING_S if linked_s is None else linked_s + seconds):
            await asyncio.sleep(0.1)
            if linked_s is None and counts and counts[-1] == neighbors:
                linked_s = round(elapsed, 2)
            if linked_s is not None and published < _VERSIONS and elapsed > linked_s + published:
                previous = _version(identity, store, run, published, previous, clock.now())
                node.publish(previous, clock.now())
                driver.wake()
                published += 1
        await driver.flush_control(_FLUSH_S)
        memory = psutil.Process().memory_info().rss
    finally:
        await driver.close()
        await daemon.close()
    stub = json.loads((folder / "stub.json").read_text())
    links = counts[-1] if counts else 0
    full = counts.index(neighbors) if neighbors in counts else len(counts)
    return {
        "neighbors": neighbors,
        "links": links,
        "links_lost": sum(max(0, before - after) for before, after in pairwise(counts[full:])),
        "linked_s": linked_s,
        "frames_sent": transport.sent,
        "frames_lost": transport.failed + stub["greetings_lost"],
        "frames_received": stub["greetings"] - stub["greetings_lost"],
        "versions": published,
        "resident_mb": round(memory / 1e6, 1),
    }


def _version(identity: Identity, store: MemoryBlobs, run: bytes, version: int, previous: bytes, now: float) -> bytes:
    data = random.Random(version).randbytes(9_000)  # noqa: S311 - content for a measurement
    ref = blob_of(data, 4096)
    store.add(ref, data)
    before = envelope_digest(previous) if previous else b""
    return seal(identity, PolicyManifest(version, version, ref, bytes(32), before, bytes(32), 0), run=run, now=now)


@contextlib.contextmanager
def _environment(variables: dict[str, str]) -> Iterator[None]:
    """Set these variables inside this block, for the daemon that is started there."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _stub_binary(folder: Path) -> Path:
    """A program that takes the daemon's arguments and runs the stub."""
    binary = folder / "p2pd"
    binary.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m p2prl_lab.many_neighbors {_AS_DAEMON} "$@"\n')
    binary.chmod(0o700)
    return binary


def main() -> int:
    """Run the node, or the stub that it has started."""
    raise_open_files()
    if sys.argv[1:2] == [_AS_DAEMON]:
        (control,) = (a.removeprefix("-listen=/unix") for a in sys.argv if a.startswith("-listen=/unix"))
        plan = json.loads(os.environ[_PLAN])
        asyncio.run(StubDaemon(plan, control).run())
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--neighbors", type=int, default=1_024)
    parser.add_argument("--seconds", type=float, default=25.0, help="after all are linked")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-neighbors-") as folder:
        report = asyncio.run(measure(arguments.neighbors, arguments.seconds, Path(folder)))
    print(json.dumps(report, indent=None if arguments.json else 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
