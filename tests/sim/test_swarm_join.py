"""Joining a run: manifest, files, newcomers, peers of other runs and wire versions."""

from __future__ import annotations

import msgspec

from p2prl.protocol import frames, wire_version
from p2prl.protocol.digests import chunk_digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Push
from p2prl.protocol.manifests import BlobRef, PolicyManifest, RunFile, blob_of
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import (
    ClockOff,
    FileReady,
    PeerBanned,
    RunKnown,
    VersionReady,
    WireMismatch,
)
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.protocol_swarm import ProtocolSwarm
from tests.sim.node_swarm import events_of, hello_of, swarm


def test_a_volunteer_joins_with_the_run_digest_alone() -> None:
    made = swarm(weight_bytes=51_200)
    data = bytes(range(256)) * 200
    made.publish(0, data=data)
    joiner = made.add("joiner", bootstrap=("learner",))
    made.network.run_for(10)
    (known,) = events_of(joiner, RunKnown)
    assert isinstance(known, RunKnown)
    assert envelope_digest(known.raw) == made.run
    (ready,) = events_of(joiner, VersionReady)
    assert isinstance(ready, VersionReady)
    assert joiner.store.whole(ready.manifest.weights) == data


def test_a_false_run_manifest_is_ignored() -> None:
    made = ProtocolSwarm(VirtualNetwork(1))
    impostor = identity_of("impostor")
    false = seal(impostor, run_manifest_of(impostor), run=bytes(32), now=START)
    joiner = made.add("joiner")
    made.network.inject(impostor.peer_id, joiner.peer, hello_of(made.run) + frames.pack(Push(false)))
    made.network.run_for(5)
    assert not events_of(joiner, RunKnown)


def test_run_files_arrive_by_name() -> None:
    text = b'{"model_type": "tiny"}' * 500
    ref = blob_of(text, 4096)
    learner = identity_of("learner")
    manifest = msgspec.structs.replace(run_manifest_of(learner), files=(RunFile("config.json", ref),))
    made = ProtocolSwarm(VirtualNetwork(2), manifest=manifest)
    store = MemoryBlobs()
    store.add(ref, text)
    made.add("learner", Role.LEARNER, store=store)
    joiner = made.add("joiner", bootstrap=("learner",))
    made.network.run_for(20)
    assert events_of(joiner, FileReady) == [FileReady("config.json", ref.root)]
    assert joiner.store.whole(ref) == text


def listed(data: bytes) -> BlobRef:
    """A blob as documents of wire versions below 7 name it."""
    starts = range(0, len(data), 4096)
    return BlobRef(len(data), 4096, tuple(chunk_digest(data[start : start + 4096]) for start in starts))


def test_a_run_that_began_under_an_earlier_wire_version_goes_on() -> None:
    """Its manifests list their chunks; peers prove the chunks to each other all the same."""
    text, weights = b'{"model_type": "tiny"}' * 500, bytes(range(256)) * 234 + bytes(96)
    file, ref = listed(text), listed(weights)
    bare = run_manifest_of(identity_of("learner"), weight_bytes=len(weights))
    made = ProtocolSwarm(
        VirtualNetwork(2), manifest=msgspec.structs.replace(bare, files=(RunFile("config.json", file),))
    )
    store = MemoryBlobs()
    store.add(file, text)
    store.add(ref, weights)
    learner = made.add("learner", Role.LEARNER, store=store)
    made.say(PolicyManifest(0, 0, ref, chunk_digest(weights), b"", bytes(32), int(START * 1000)))
    first = made.add("first", bootstrap=("learner",))
    made.network.run_for(20)
    made.network.crash(learner.peer)
    second = made.add("second", bootstrap=("first",))
    made.network.run_for(20)
    for joiner in (first, second):
        assert joiner.store.whole(file) == text
        assert joiner.store.whole(ref) == weights


def test_a_newcomer_is_served_without_the_learner() -> None:
    made = swarm(volunteers=3, weight_bytes=100_000)
    made.network.run_for(5)
    for _ in range(2):
        made.publish(100_000)
        made.network.run_for(10)
    made.network.crash(made.members["learner"].peer)
    late = made.add("late", bootstrap=("v1",))
    made.network.run_for(30)
    assert sorted(late.ready_at) == [1]
    assert made.network.node(late.peer).relay_stats.received_from_source == 0


def test_peers_of_another_run_are_ignored() -> None:
    made = swarm(volunteers=1)
    made.network.run_for(5)
    learner = made.members["learner"]
    stranger = identity_of("stranger").peer_id
    before = made.network.node(learner.peer).roles()
    made.network.inject(stranger, learner.peer, hello_of(bytes(32)))
    made.network.run_for(5)
    assert made.network.node(learner.peer).roles() == before
    assert not events_of(learner, PeerBanned)


def test_another_wire_version_is_reported() -> None:
    made = swarm()
    learner = made.members["learner"]
    stranger = identity_of("stranger").peer_id
    made.network.inject(stranger, learner.peer, hello_of(made.run, wire=wire_version.WIRE_VERSION + 1))
    made.network.run_for(5)
    assert events_of(learner, WireMismatch) == [WireMismatch(stranger, wire_version.WIRE_VERSION + 1)]
    assert made.network.node(learner.peer).roles() == ()


def test_a_wrong_clock_is_reported_once() -> None:
    made = swarm(volunteers=3)
    off = made.add("off", bootstrap=("learner",), clock_offset_s=-300.0)
    made.network.run_for(60)
    (told,) = events_of(off, ClockOff)
    assert isinstance(told, ClockOff)
    assert abs(told.offset_s - 300) < 2
    assert not events_of(made.members["v0"], ClockOff)
