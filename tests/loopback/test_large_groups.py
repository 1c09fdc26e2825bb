"""A group of megabytes over real sockets: small messages pass it, and a killed network process costs few parts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic

import msgspec
import pytest

from p2prl.clock import SystemClock
from p2prl.net.process import control
from p2prl.net.process.handle import NetworkHandle
from p2prl.net.process.network_config import NetworkConfig
from p2prl.net.storage.key_file import create_identity
from p2prl.protocol import limits
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import Sampling
from p2prl.protocol.rollout_group import Completion
from p2prl.protocol.signed_group import read_group, seal_group
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl_lab.testing.protocol_swarm import group_of

pytestmark = pytest.mark.loopback

LEARNER, VOLUNTEER = identity_of("learner"), identity_of("volunteer")
SAMPLING = Sampling(1.0, limits.MAX_COMPLETION_TOKENS, limits.MAX_GROUP_SIZE)
TOKENS = limits.MAX_COMPLETION_TOKENS


def start(folder: Path, identity: Identity, role: Role, manifest: bytes, bootstrap: tuple[str, ...]) -> NetworkHandle:
    create_identity(folder / role.name / "key", identity)
    return NetworkHandle(
        NetworkConfig(
            key_file=folder / role.name / "key",
            run=envelope_digest(manifest),
            node=NodeConfig(role=role, relay=RelayConfig(upload_bytes_s=1_000_000.0)),
            blob_dir=folder / role.name / "blobs",
            listen=("/ip4/127.0.0.1/tcp/0",),
            bootstrap=bootstrap,
            manifest=manifest,
        )
    )


def arriving(network: NetworkHandle, *, seconds: float = 120.0) -> Iterator[control.FromNetwork]:
    until = monotonic() + seconds
    while monotonic() < until:
        yield from network.poll(0.1)
    raise AssertionError("nothing more arrives")


@pytest.mark.timeout(1200)
def test_a_large_group_survives_a_kill_and_delays_no_small_one(tmp_path: Path) -> None:
    now = SystemClock().now()
    settings = msgspec.structs.replace(run_manifest_of(LEARNER), sampling=SAMPLING)
    manifest = seal(LEARNER, settings, run=bytes(32), now=now)
    run = envelope_digest(manifest)
    rows = (Completion(os.urandom(4 * TOKENS), os.urandom(2 * TOKENS), finished=False, reward=0.0),) * 24
    group = msgspec.structs.replace(group_of(1), completions=rows)
    raw, body = seal_group(VOLUNTEER, group, run=run, now=now)
    small = seal(VOLUNTEER, group_of(2), run=run, now=now)
    with ExitStack() as stack:
        learner = start(tmp_path, LEARNER, Role.LEARNER, manifest, ())
        stack.callback(learner.close)
        address = next(m for m in arriving(learner) if isinstance(m, control.NetworkUp)).addresses[0]
        volunteer = start(tmp_path, VOLUNTEER, Role.VOLUNTEER, manifest, (address,))
        stack.callback(volunteer.close)
        next(m for m in arriving(volunteer) if isinstance(m, control.Status) and m.peers)
        volunteer.send(signals.HoldGroup(envelope_digest(raw), body))
        volunteer.send(signals.Publish(raw))
        order: list[str] = []
        killed, announced_at = False, monotonic()
        for message in arriving(learner):
            if isinstance(message, control.EnvelopeArrived) and message.envelope == raw:
                learner.send(signals.FetchGroup(envelope_digest(raw)))
                volunteer.send(signals.Publish(small))
            elif isinstance(message, control.EnvelopeArrived):
                order.append("small")
            elif isinstance(message, control.GroupFetched):
                order.append("large")
                fetched = message
                break
            volunteer.poll(0.0)
            sent = volunteer.status.uploaded_bytes_month if volunteer.status else 0
            if not killed and sent > len(body) // 4:
                killed = True
                os.kill(learner.pid, signal.SIGKILL)
            if monotonic() > announced_at + 1.0:  # as a spool does
                announced_at = monotonic()
                volunteer.send(signals.Publish(raw))
        assert killed
        assert order[0] == "small", "bulk frames delay no other message"
        assert read_group(fetched.envelope, Path(fetched.path).read_bytes()).group == group
        learner.send(signals.ReleaseGroup(envelope_digest(raw)))
        sent = next(m.uploaded_bytes_month for m in arriving(volunteer) if isinstance(m, control.Status))
        assert sent < len(body) + 12 * limits.GROUP_PART_BYTES, "only what was on its way is sent again"
