"""Processor seconds that relaying costs: two relays on this machine, joined by frame streams over loopback TCP.

    python -m p2prl_lab.relay_cpu [--mib 256] [--chunk-kib 256 4096] [--json]

One relay has a blob on disk; the other fetches it, checks every chunk with its proof and writes it to disk. Both run in
this process, so the figure is bytes of the blob for each processor second of both ends together. It counts packing,
streams, acknowledgements, the relay's grants and requests, hashing twice, reading and writing. It does not count the
libp2p daemon, which encrypts in a process of its own, or gossip.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from p2prl.net.storage.chain_blobs import WorkerBlobs
from p2prl.net.transports import framing, streams
from p2prl.protocol.frames import join, pack, unpack
from p2prl.protocol.link_messages import Chunk
from p2prl.protocol.manifests import BlobRef, blob_of
from p2prl.sim.machines import identity_of
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.relay_config import RelayConfig

_UPLOAD_BYTES_S = 1e9
_TICK_S = 0.05


class End:
    """A relay and its streams to the other one. Every frame is followed by one flush, as in a node's driver."""

    def __init__(self, name: str, folder: Path) -> None:
        self.peer = identity_of(name).peer_id
        self.store = WorkerBlobs(folder / name)
        rng = random.Random(name)  # noqa: S311 - chooses among chunks
        self.relay = Relay(self.store, rng, RelayConfig(upload_bytes_s=_UPLOAD_BYTES_S))
        self.other: End | None = None
        self.port = 0
        self._streams: dict[bool, streams.FrameStream] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self._accepting: set[asyncio.Task[Any]] = set()
        self.complete = asyncio.Event()

    async def serve(self) -> asyncio.Server:
        """Listen for the other end's streams."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._accepting.add(task)
            try:
                await streams.serve(reader, writer, self._receive)
            except (EOFError, OSError):
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    def link(self, other: End, *, is_source: bool) -> None:
        """Open the streams to the other end when they are needed."""
        self.other = other
        for bulk in (False, True):
            open_stream = lambda: asyncio.open_connection("127.0.0.1", other.port)  # noqa: E731
            self._streams[bulk] = streams.FrameStream(open_stream, bulk=bulk)
        self.relay.add_neighbor(other.peer, is_source=is_source)

    def pump(self) -> None:
        """Send what the relay has to say."""
        now = time.monotonic()
        deadline = self.relay.next_deadline()
        if deadline is not None and deadline <= now:
            self.relay.handle_timer(now)
        self.relay.flush(now)
        messages = [message for _, message in self.relay.outbox]
        self.relay.outbox.clear()
        for message in messages:
            if isinstance(message, Chunk):
                self._send(pack(message))
        for frame in join(pack(message) for message in messages if not isinstance(message, Chunk)):
            self._send(frame)
        if self.relay.completed:
            self.complete.set()

    async def sent(self) -> None:
        """Wait until all frames are acknowledged."""
        await asyncio.gather(*self._sending)

    async def close(self) -> None:
        """Close the streams, and the files when the other end has closed its streams too."""
        for stream in self._streams.values():
            stream.close()
        await asyncio.gather(*self._accepting)
        self.store.close()

    def _receive(self, frame: bytes) -> None:
        assert self.other is not None
        for message in unpack(frame):
            self.relay.receive(message, self.other.peer, time.monotonic())
        self.pump()

    def _send(self, frame: bytes) -> None:
        task = asyncio.create_task(self._sent(frame))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _sent(self, frame: bytes) -> None:
        bulk = framing.is_bulk(frame)
        await self._streams[bulk].send(frame)
        if bulk:
            assert self.other is not None
            self.relay.upload_done(self.other.peer)
            self.pump()


async def _transfer(folder: Path, ref: BlobRef, data: bytes) -> float:
    """Processor seconds of one transfer."""
    giver, taker = End("giver", folder), End("taker", folder)
    giver.store.add(ref, data)
    servers = [await end.serve() for end in (giver, taker)]
    giver.link(taker, is_source=False)
    taker.link(giver, is_source=True)
    giver.relay.offer(ref, time.monotonic())
    began = time.process_time()
    taker.relay.fetch(ref, time.monotonic())
    while not taker.complete.is_set():
        giver.pump()
        taker.pump()
        try:
            await asyncio.wait_for(taker.complete.wait(), _TICK_S)
        except TimeoutError:
            continue
    spent_s = time.process_time() - began
    assert (folder / "taker" / ref.root.hex()).read_bytes() == data
    await asyncio.gather(giver.sent(), taker.sent())
    await asyncio.gather(giver.close(), taker.close())
    for server in servers:
        server.close()
    return spent_s


def main() -> int:
    """Measure, and print a line for each size of chunks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--chunk-kib", type=int, nargs="+", default=[256, 4096])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rates = {}
    for kib in arguments.chunk_kib:
        data = os.urandom(arguments.mib << 20)
        with tempfile.TemporaryDirectory(prefix="relay-cpu-") as folder:
            spent_s = asyncio.run(_transfer(Path(folder), blob_of(data, kib << 10), data))
        rates[kib] = len(data) / 1e6 / spent_s
        if not arguments.json:
            print(f"chunks of {kib} KiB: {rates[kib]:.0f} MB for each processor second of both ends")
    if arguments.json:
        print(json.dumps({"mb_per_cpu_s": {str(kib): round(rate, 1) for kib, rate in rates.items()}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
