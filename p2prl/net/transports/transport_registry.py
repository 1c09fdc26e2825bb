"""Registry of transports by name: `hivemind`, `libp2p`, and those of installed packages.

Nothing is imported until a transport is requested: hivemind and py-libp2p register the same protobuf names, so one
process can hold only one of them.
"""

from __future__ import annotations

from p2prl.net.ports import TransportFactory
from p2prl.plugins import Registry

TRANSPORTS: Registry[TransportFactory] = Registry(
    "p2prl.transports",
    kind="transport",
    builtin={
        "hivemind": "p2prl.net.transports.hivemind.transport:start_hivemind",
        "libp2p": "p2prl.net.transports.libp2p.transport:start_libp2p",
    },
)
