"""A peer in a separate process, for the transport's loopback tests: echoes each frame to its sender.

Arguments: the hexadecimal entropy, then bootstrap addresses. Prints one JSON line when it is up; answers each line on
standard input with its resident memory, kilobytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import psutil

from p2prl.errors import TransportError
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig
from p2prl.net.transports.hivemind.transport import HivemindTransport
from p2prl.protocol.identity import Identity, PeerId


async def main() -> None:
    identity = Identity.generate(bytes.fromhex(sys.argv[1]))
    daemon_config = DaemonConfig(nat_port_map=False, auto_nat=False)
    peer = await HivemindTransport.start(
        identity, listen=("/ip4/127.0.0.1/tcp/0",), bootstrap=sys.argv[2:], daemon_config=daemon_config
    )

    async def answer(sender: PeerId, frame: bytes) -> None:
        with contextlib.suppress(TransportError):
            await peer.send(sender, frame, timeout_s=10)

    tasks = set()

    def echo(sender: PeerId, frame: bytes) -> None:
        task = asyncio.ensure_future(answer(sender, frame))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    peer.set_receiver(echo)
    up = {"peer_id": peer.peer_id, "addresses": peer.addresses, "daemon_pid": peer._daemon.pid}
    print(json.dumps(up), flush=True)  # noqa: T201
    while await asyncio.to_thread(sys.stdin.readline):
        heavy = [name for name in ("torch", "transformers", "numpy") if name in sys.modules]
        memory = psutil.Process().memory_info().rss // 1024
        print(json.dumps({"rss_kb": memory, "heavy": heavy}), flush=True)  # noqa: T201
    await peer.close()


if __name__ == "__main__":
    asyncio.run(main())
