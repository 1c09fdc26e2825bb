"""Policy versions on one node: equivocation, replayed manifests, requests by name, disk use."""

from __future__ import annotations

import msgspec

from p2prl.protocol import frames
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Push
from p2prl.protocol.manifests import PolicyManifest
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_time import START
from p2prl.swarm import signals
from p2prl.swarm.events import Equivocation, VersionReady
from p2prl.swarm.node_config import NodeConfig
from tests.sim.node_swarm import events_of, hello_of, swarm


def test_equivocation_is_reported_with_both_manifests() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    made.publish(20_000)
    made.network.run_for(5)
    first, manifest, _ = made.published[0]
    twin = seal(identity_of("learner"), msgspec.structs.replace(manifest, beacon=bytes(32)), run=made.run, now=START)
    messenger = identity_of("messenger").peer_id
    target = made.members["v0"]
    made.network.inject(messenger, target.peer, hello_of(made.run) + frames.pack(Push(twin)))
    made.network.run_for(2)
    assert events_of(target, Equivocation) == [Equivocation(first, twin)]


def test_a_reencoded_manifest_is_not_equivocation() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    made.publish(20_000)
    made.network.run_for(5)
    raw = made.published[0][0]
    body = open_envelope(raw, now=None)
    short = body.author
    other = raw.replace(b"\xc4\x20" + short, b"\xc5\x00\x20" + short)
    assert other != raw
    target = made.members["v0"]
    made.network.inject(identity_of("m").peer_id, target.peer, hello_of(made.run) + frames.pack(Push(other)))
    made.network.run_for(2)
    assert not events_of(target, Equivocation)


def test_a_replayed_old_manifest_downloads_nothing() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    for _ in range(7):
        made.publish(20_000)
        made.network.run_for(5)
    late = made.add("late", bootstrap=("v0",))
    made.network.run_for(10)
    assert sorted(late.ready_at) == [6]
    for old in (0, 5):
        made.network.inject(
            identity_of("m").peer_id, late.peer, hello_of(made.run) + frames.pack(Push(made.published[old][0]))
        )
    made.network.run_for(20)
    assert sorted(late.ready_at) == [6]
    announced = [event.version for event in late.events if isinstance(event, signals.VersionAnnounced)]
    assert announced == [6], "versions only grow"


def test_a_version_requested_by_name_is_reported_each_time() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    for _ in range(3):
        made.publish(20_000)
        made.network.run_for(5)
    late = made.add("late", Role.VALIDATOR, bootstrap=("v0",))
    made.network.run_for(10)
    name = envelope_digest(made.published[1][0])
    node = made.network.node(late.peer)
    for _ in range(2):
        node.order(signals.FetchPolicy(name), made.network.now)
        made.network.wake(late.peer)
        made.network.run_for(10)
    ready = [event.digest for event in late.events if isinstance(event, VersionReady)]
    assert ready == [envelope_digest(made.published[2][0]), name, name]


def test_versions_on_disk_are_bounded() -> None:
    made = swarm(volunteers=2, weight_bytes=50_000)
    made.network.run_for(5)
    for _ in range(12):
        made.publish(50_000)
        made.network.run_for(6)
    keep = NodeConfig(role=Role.VOLUNTEER).keep_versions
    for member in made.members.values():
        assert member.store.size_bytes <= (keep + 1) * 50_000, member.name
        if member.role is Role.VOLUNTEER:
            assert sorted(member.ready_at) == list(range(12))


def test_versions_of_equal_bytes_are_independent() -> None:
    made = swarm(volunteers=2, weight_bytes=25_600)
    made.network.run_for(5)
    data = bytes(range(256)) * 100
    for version in range(7):
        made.publish(0, data=data)
        made.network.run_for(6)
        for member in made.members.values():
            if member.role is Role.VOLUNTEER:
                assert sorted(member.ready_at) == list(range(version + 1))
    late = made.add("late", bootstrap=("v0",))
    made.network.run_for(10)
    assert late.store.whole(made.published[-1][1].weights) == data


def test_a_manifest_names_its_predecessor() -> None:
    made = swarm()
    first = made.publish(20_000)
    second = made.publish(20_000)
    assert isinstance(first, PolicyManifest)
    assert second.previous == Digest(envelope_digest(made.published[0][0]))
