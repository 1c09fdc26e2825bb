"""A learner and a volunteer in separate processes, over their network processes and the transports given.

Arguments: the learner's transport, the volunteer's transport, a folder. The volunteer joins through the learner's
address, downloads version 0 under the learner's upload cap and publishes one group. Prints one JSON line at the end.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from p2prl.clock import SystemClock
from p2prl.net.process import control
from p2prl.net.process.handle import NetworkHandle
from p2prl.net.process.network_config import NetworkConfig
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.key_file import create_identity
from p2prl.protocol.envelope import body_of, envelope_digest, open_envelope, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl_lab.testing.protocol_swarm import group_of

T = TypeVar("T")

LEARNER, VOLUNTEER = identity_of("learner"), identity_of("volunteer")
NOW = SystemClock().now()
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER, weight_bytes=3_000_000), run=bytes(32), now=NOW)
RUN = envelope_digest(MANIFEST)
LOCAL = ("/ip4/127.0.0.1/tcp/0",)
UPLOAD_BYTES_S = 1_500_000.0
WEIGHTS = random.Random(1).randbytes(3_000_000)


def wait_for(network: NetworkHandle, kind: type[T], wanted: Callable[[T], bool] = lambda _: True) -> T:
    until = SystemClock().now() + 60
    while SystemClock().now() < until:
        for message in network.poll(0.2):
            if isinstance(message, kind) and wanted(message):
                return message
    raise SystemExit(f"no {kind.__name__} in a minute")


def main(learner_transport: str, volunteer_transport: str, folder: Path) -> None:
    for name, identity in (("learner", LEARNER), ("volunteer", VOLUNTEER)):
        create_identity(folder / name / "key", identity)
    learner = NetworkHandle(
        NetworkConfig(
            key_file=folder / "learner" / "key",
            run=RUN,
            node=NodeConfig(role=Role.LEARNER, relay=RelayConfig(upload_bytes_s=UPLOAD_BYTES_S)),
            blob_dir=folder / "learner" / "blobs",
            listen=LOCAL,
            manifest=MANIFEST,
            transport=learner_transport,
        )
    )
    address = wait_for(learner, control.NetworkUp).addresses[0]
    ref = blob_of(WEIGHTS, 256 * 1024)
    DiskBlobStore(folder / "learner" / "blobs").add(ref, WEIGHTS)
    policy = PolicyManifest(0, 0, ref, bytes(32), b"", bytes(32), 0)
    learner.send(signals.Publish(seal(LEARNER, policy, run=RUN, now=NOW)))
    published_at = SystemClock().now()
    volunteer = NetworkHandle(
        NetworkConfig(
            key_file=folder / "volunteer" / "key",
            run=RUN,
            node=NodeConfig(role=Role.VOLUNTEER),
            blob_dir=folder / "volunteer" / "blobs",
            listen=LOCAL,
            bootstrap=(address,),
            transport=volunteer_transport,
        )
    )
    wait_for(volunteer, control.RunKnown, lambda message: message.manifest == MANIFEST)
    ready = wait_for(volunteer, control.VersionReady)
    rate_bytes_s = len(WEIGHTS) / (SystemClock().now() - published_at)
    group = seal(VOLUNTEER, group_of(1), run=RUN, now=SystemClock().now())
    volunteer.send(signals.Publish(group))
    arrived = wait_for(learner, control.EnvelopeArrived, lambda message: message.envelope == group)
    slot = body_of(open_envelope(arrived.envelope, now=None), RolloutGroup).slot
    intact = Path(ready.path).read_bytes() == WEIGHTS
    peers = dict(wait_for(learner, control.Status, lambda status: bool(status.peers)).peers)
    for network in (volunteer, learner):
        network.close()
    print(json.dumps({"intact": intact, "slot": slot, "peers": peers, "rate_bytes_s": rate_bytes_s}))  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
