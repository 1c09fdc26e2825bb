"""Network processes without a role's program around them, at loopback addresses of their own."""

from __future__ import annotations

import time
from pathlib import Path

from p2prl.net.process.handle import NetworkHandle
from p2prl.net.process.network_config import NetworkConfig, ReachOptions
from p2prl.net.storage.key_file import create_identity
from p2prl.sim.machines import identity_of
from p2prl.swarm.node_config import NodeConfig

POLL_S = 0.02
START_S = 60.0
"""Longest wait for what takes seconds, on a busy machine."""


def start_node(
    folder: Path, name: str, host: str, run: bytes, node: NodeConfig, *, manifest: bytes = b"",
    bootstrap: tuple[str, ...] = (),
) -> NetworkHandle:  # fmt: skip
    """The network process of the simulator's identity of this name, which listens at this IPv4 address."""
    create_identity(folder / name / "key", identity_of(name))
    return NetworkHandle(
        NetworkConfig(
            key_file=folder / name / "key",
            run=run,
            node=node,
            blob_dir=folder / name / "blobs",
            listen=(f"/ip4/{host}/tcp/0",),
            bootstrap=bootstrap,
            manifest=manifest,
            reach=ReachOptions(maps_ports=False),
        )
    )


def address_of(network: NetworkHandle) -> str:
    """The address of a process that has just been started, which may report nothing else before."""
    until = time.monotonic() + START_S
    while not network.addresses:
        network.poll(POLL_S)
        assert time.monotonic() < until, "the node does not start"
    return network.addresses[0]
