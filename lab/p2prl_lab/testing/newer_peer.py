"""A peer process that speaks the next wire version: the network process with one number changed.

    python -m p2prl_lab.testing.newer_peer KEY_FILE RUN_DIGEST FOLDER

The digest is hexadecimal, the folder takes blobs. Prints its address when it is up, and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from pathlib import Path

from p2prl.net.process import control
from p2prl.net.process.network_config import NetworkConfig
from p2prl.net.process.network_process import NetworkProcess
from p2prl.protocol import wire_version
from p2prl.protocol.kinds import Role
from p2prl.swarm.node_config import NodeConfig

wire_version.WIRE_VERSION += 1


async def main() -> None:
    ours, theirs = socket.socketpair()
    reader, writer = await asyncio.open_connection(sock=theirs)
    role_reader, role_writer = await asyncio.open_connection(sock=ours)
    process = asyncio.ensure_future(NetworkProcess(reader, writer).run())
    role_writer.write(
        control.pack(
            control.Start(
                NetworkConfig(
                    key_file=Path(sys.argv[1]),
                    run=bytes.fromhex(sys.argv[2]),
                    node=NodeConfig(role=Role.LEARNER, keep_versions=2),
                    blob_dir=Path(sys.argv[3]),
                    listen=("/ip4/127.0.0.1/tcp/0",),
                ),
                seed=1,
            )
        )
    )
    size = control.LENGTH.unpack(await role_reader.readexactly(control.LENGTH.size))[0]
    up = control.parse_from_network(await role_reader.readexactly(size))
    assert isinstance(up, control.NetworkUp), up
    print(next(address for address in up.addresses if "/127.0.0.1/" in address), flush=True)
    while await role_reader.read(1 << 16):
        pass
    await process


if __name__ == "__main__":
    asyncio.run(main())
