"""Network processes of a run whose learner dies and comes back elsewhere: everybody finds it, through anybody."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from p2prl.clock import SystemClock
from p2prl.net.process import control
from p2prl.net.process.handle import NetworkHandle
from p2prl.net.process.network_config import NetworkConfig
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.net.storage.key_file import create_identity
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.peers.connections_config import ConnectionsConfig
from p2prl_lab.testing.protocol_swarm import group_of

pytestmark = [pytest.mark.loopback, pytest.mark.timeout(1200)]

LEARNER = identity_of("learner")
WEIGHTS = random.Random(1).randbytes(200_000)
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER, weight_bytes=len(WEIGHTS)), run=bytes(32), now=SystemClock().now())
RUN = envelope_digest(MANIFEST)


class Peer:
    """A role's handle on its network process, and what has arrived."""

    def __init__(self, folder: Path, role: Role, *bootstrap: str) -> None:
        self.folder = folder
        if not (folder / "key").exists():
            create_identity(folder / "key", identity_of(folder.name))
        self._network = NetworkHandle(
            NetworkConfig(
                key_file=folder / "key",
                run=RUN,
                node=NodeConfig(role=role, connections=ConnectionsConfig(refresh_s=3.0)),
                blob_dir=folder / "blobs",
                listen=("/ip4/127.0.0.1/tcp/0",),
                bootstrap=bootstrap,
                peers_file=folder / "peers",
                manifest=MANIFEST if role is Role.LEARNER else b"",
            )
        )
        self.seen: list[control.FromNetwork] = []
        wait_until(lambda: bool(self.poll()._network.addresses))

    @property
    def address(self) -> str:
        return self._network.addresses[0]

    def poll(self) -> Peer:
        self.seen += self._network.poll(0.05)
        return self

    def has(self, role: str) -> bool:
        status = self.poll()._network.status
        return status is not None and role in dict(status.peers)

    def got(self, kind: type[Any], **wanted: Any) -> bool:
        return any(
            isinstance(message, kind) and all(getattr(message, key) == value for key, value in wanted.items())
            for message in self.poll().seen
        )

    def publish(self, raw: bytes) -> bytes:
        self._network.send(signals.Publish(raw))
        return raw

    def kill(self) -> None:
        os.kill(self._network.pid, signal.SIGKILL)

    def close(self) -> None:
        self._network.close()


def wait_until(condition: Callable[[], bool], *, seconds: float = 90.0) -> float:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it did not happen in time"
    return time.monotonic() - began


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(opened: ExitStack, folder: Path, role: Role, *bootstrap: str) -> Peer:
    peer = Peer(folder, role, *bootstrap)
    opened.callback(peer.close)
    return peer


def publish_policy(learner: Peer) -> None:
    ref = blob_of(WEIGHTS, 64 * 1024)
    DiskBlobStore(learner.folder / "blobs").add(ref, WEIGHTS)
    policy = PolicyManifest(0, 0, ref, bytes(32), b"", bytes(32), 0)
    learner.publish(seal(LEARNER, policy, run=RUN, now=SystemClock().now()))


def test_a_learner_at_another_port_is_found_through_others_and_a_newcomer_joins_without_it(
    opened: ExitStack, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    learner = start(opened, tmp_path / "learner", Role.LEARNER)
    publish_policy(learner)
    old = learner.address
    seeder = start(opened, tmp_path / "seeder", Role.SEEDER, old)
    volunteer = start(opened, tmp_path / "volunteer", Role.VOLUNTEER, old)
    wait_until(lambda: all(peer.got(control.VersionReady) and peer.has("learner") for peer in (seeder, volunteer)))
    wait_until(lambda: volunteer.has("seeder") and seeder.has("volunteer"))
    wait_until(lambda: (tmp_path / "learner" / "peers").exists())

    learner.kill()
    newcomer = start(opened, tmp_path / "newcomer", Role.VOLUNTEER, old, seeder.address)
    joined_s = wait_until(lambda: newcomer.got(control.RunKnown, manifest=MANIFEST))
    followed_s = wait_until(lambda: newcomer.got(control.VersionReady))
    early = seal(identity_of("newcomer"), group_of(1), run=RUN, now=SystemClock().now())
    newcomer.publish(early)
    wait_until(lambda: not volunteer.has("learner"))

    back = start(opened, tmp_path / "learner", Role.LEARNER)
    assert back.address != old
    found_s = wait_until(lambda: volunteer.has("learner") and newcomer.has("learner"))
    late = seal(identity_of("volunteer"), group_of(2), run=RUN, now=SystemClock().now())
    volunteer.publish(late)
    newcomer.publish(early)  # as a volunteer does when a learner comes into reach
    used_s = wait_until(lambda: all(back.got(control.EnvelopeArrived, envelope=group) for group in (early, late)))
    record_property("seconds", {"joined": joined_s, "followed": followed_s, "found": found_s, "used": used_s})
    print({"joined": joined_s, "followed": followed_s, "found": found_s, "used": used_s})  # noqa: T201
    assert found_s + used_s < 30
