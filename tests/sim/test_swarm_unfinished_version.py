"""A version that nobody holds whole, because the learner went away while it sent it."""

from __future__ import annotations

import msgspec

from p2prl.protocol import frames
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Have, Push
from p2prl.protocol.manifests import Patch, blob_of
from p2prl.sim.hosts import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm.events import RunKnown, VersionAnnounced, VersionReady
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.chunk_sets import to_bitmap
from p2prl.testing.patched_swarm import PatchedSwarm
from p2prl.testing.protocol_swarm import Member, ProtocolSwarm
from tests.sim.node_swarm import events_of, hello_of

_WEIGHTS = 320_000
_UPLINK = 100_000.0
"""Bytes/s of the learner: it sends a version in some seconds."""

_SOON_S = 20.0
"""A newcomer has the older version by then: it looks at the newest for five seconds, and asks for manifests at most
every two."""


def left_alone(unfinished: int = 1) -> ProtocolSwarm:
    """Three volunteers hold version 2 and less than all of `unfinished` versions after it; the learner is gone."""
    made = ProtocolSwarm(VirtualNetwork(1), weight_bytes=_WEIGHTS)
    made.add("learner", Role.LEARNER, upload_bytes_s=_UPLINK)
    for name in ("v0", "v1", "v2"):
        made.add(name, bootstrap=("learner",))
    made.network.run_for(5)
    for _ in range(3):
        made.publish(_WEIGHTS)
        made.network.run_for(30)
    for _ in range(unfinished):
        made.publish(_WEIGHTS)
        made.network.run_for(1)
    made.network.crash(made.members["learner"].peer)
    made.network.run_for(60)
    for name in ("v0", "v1", "v2"):
        assert sorted(made.members[name].ready_at) == [0, 1, 2]
        assert len(events_of(made.members[name], VersionAnnounced)) == 3 + unfinished
    return made


def test_a_newcomer_takes_the_newest_version_that_its_peers_hold_whole() -> None:
    made = left_alone()
    late = made.add("late", bootstrap=("v0", "v1", "v2"))
    made.network.run_for(_SOON_S)
    assert events_of(late, RunKnown)
    assert sorted(late.ready_at) == [2]
    assert late.store.whole(made.published[2][1].weights) == made.members["v0"].store.whole(
        made.published[2][1].weights
    )


def test_it_looks_for_older_versions_as_far_as_they_are_kept() -> None:
    made = left_alone(unfinished=3)
    late = made.add("late", bootstrap=("v0", "v1", "v2"))
    made.network.run_for(3 * _SOON_S)
    assert sorted(late.ready_at) == [2]


def come_back(made: ProtocolSwarm) -> None:
    """The learner is started again, publishes its last versions again and dials a volunteer."""
    learner = made.members["learner"]
    made.network.restart(learner.peer)
    for raw, _, _ in made.published[-2:]:
        made.network.node(learner.peer).publish(raw, made.network.now)
    made.network.connect(learner.peer, made.members["v0"].peer)


def test_it_goes_on_to_the_newest_when_the_learner_is_back() -> None:
    made = left_alone()
    late = made.add("late", bootstrap=("v0", "v1", "v2"))
    made.network.run_for(_SOON_S)
    assert sorted(late.ready_at) == [2]
    come_back(made)
    made.network.run_for(60)
    assert versions(late) == [2, 3]


def test_chunks_of_the_newest_are_kept_while_an_older_one_stands_in() -> None:
    """A slow line: the learner is back before the older version is complete, and nothing of either is thrown away."""
    made = left_alone()
    late = made.add("late", bootstrap=("v0", "v1", "v2"), download_bytes_s=20_000.0)
    made.network.run_for(_SOON_S)
    assert not late.ready_at
    come_back(made)
    made.network.run_for(60)
    assert 3 in late.ready_at
    stats = made.network.node(late.peer).relay_stats
    assert stats.received_from_peers + stats.received_from_source <= 2 * _WEIGHTS


def test_claims_without_chunks_delay_it_and_no_more() -> None:
    made = left_alone()
    liar = identity_of("liar").peer_id
    made.network.add_stranger(liar, "/ip4/44.1.2.3/tcp/4001")
    late = made.add("late", bootstrap=("v0", "v1", "v2"))
    newest = made.published[3][1].weights
    everything = Have(newest.root, to_bitmap((1 << newest.total) - 1, newest.total))
    made.network.run_for(1)
    made.network.inject(liar, late.peer, hello_of(made.run, now=made.network.now) + frames.pack(everything))
    made.network.run_for(_SOON_S - 1)
    assert not late.ready_at
    made.network.run_for(_SOON_S)
    assert sorted(late.ready_at) == [2]


def versions(member: Member) -> list[int]:
    """Versions in the order in which they were complete."""
    return [event.manifest.version for event in member.events if isinstance(event, VersionReady)]


def test_who_follows_already_waits_for_the_newest() -> None:
    """Version 2 is on their disks: nothing older is of use to them."""
    made = left_alone()
    come_back(made)
    made.network.run_for(60)
    for name in ("v0", "v1", "v2"):
        assert versions(made.members[name]) == [0, 1, 2, 3]


def test_a_newcomer_waits_for_a_slow_learner() -> None:
    """Its chunks arrive, if slowly: the versions before stay where they are."""
    made = ProtocolSwarm(VirtualNetwork(1), weight_bytes=_WEIGHTS)
    made.add("learner", Role.LEARNER, upload_bytes_s=10_000.0)
    for _ in range(3):
        made.publish(_WEIGHTS)
    late = made.add("late", bootstrap=("learner",))
    made.network.run_for(60)
    assert sorted(late.ready_at) == [2]
    assert made.network.node(late.peer).relay_stats.received_from_source <= _WEIGHTS


def test_a_peer_without_links_gives_nothing_up() -> None:
    """Its line is down for a minute while it downloads: nobody is there to wait for."""
    made = ProtocolSwarm(VirtualNetwork(1), weight_bytes=_WEIGHTS)
    learner = made.add("learner", Role.LEARNER, upload_bytes_s=_UPLINK)
    made.publish(_WEIGHTS)
    made.publish(_WEIGHTS)
    late = made.add("late", bootstrap=("learner",))
    made.network.run_for(2)
    now = made.network.now
    made.network.partition([[late.peer], [learner.peer]], now, now + 60)
    made.network.run_for(61)
    made.network.connect(late.peer, learner.peer)
    made.network.run_for(60)
    assert sorted(late.ready_at) == [1]


def patched_run() -> PatchedSwarm:
    """Versions 0 to 4 with patches; `lagging` has version 1, two others all. Of version 5 there is the manifest alone,
    and the learner is gone."""
    made = PatchedSwarm(VirtualNetwork(2))
    learner = made.add("learner", Role.LEARNER, config=rebuilds)
    followers = [made.add(name, bootstrap=("learner",), config=rebuilds) for name in ("v0", "v1")]
    lagging = made.add("lagging", bootstrap=("learner",), config=rebuilds)
    for version in range(5):
        if version == 2:
            now = made.network.now
            made.network.partition([[lagging.peer], [learner.peer, *(v.peer for v in followers)]], now, now + 150)
        made.advance(keyframe=True)
        made.network.run_for(30)
    assert [max(member.ready_at) for member in (*followers, lagging)] == [4, 4, 1]
    made.network.crash(learner.peer)
    raw, last, _ = made.published[-1]
    weights, patch = blob_of(bytes(last.weights.size_bytes), 4096), blob_of(bytes(500), 4096)
    unfinished = msgspec.structs.replace(
        last, version=5, weights=weights, previous=envelope_digest(raw), patches=(Patch(4, last.weights_digest, patch),)
    )
    envelope = seal(learner.identity, unfinished, run=made.run, now=made.network.now)
    messenger = identity_of("messenger").peer_id
    for member in followers:
        made.network.inject(messenger, member.peer, hello_of(made.run) + frames.pack(Push(envelope)))
    made.network.run_for(90)
    return made


def rebuilds(role: Role) -> NodeConfig:
    return NodeConfig(role=role, rebuilds=role is Role.VOLUNTEER, keep_versions=64 if role is Role.LEARNER else 4)


def test_a_newcomer_does_without_patches_that_nobody_has() -> None:
    """Nobody but the learner keeps patches from nothing."""
    made = patched_run()
    late = made.add("late", bootstrap=("v0", "v1"), config=rebuilds)
    made.network.run_for(2 * _SOON_S)
    assert sorted(late.ready_at) == [4]
    assert made.words_of(late, 4) == made.versions[4].tobytes()


def test_who_was_away_takes_patches_to_the_newest_that_others_have() -> None:
    made = patched_run()
    lagging = made.members["lagging"]
    made.network.connect(lagging.peer, made.members["v0"].peer)
    made.network.run_for(2 * _SOON_S)
    assert max(lagging.ready_at) == 4
    assert made.network.node(lagging.peer).download_stats.full_bytes <= made.versions[0].nbytes, "but for its first"
