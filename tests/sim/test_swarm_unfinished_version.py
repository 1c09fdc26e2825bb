"""A version that nobody holds whole, because the learner went away while it sent it."""

from __future__ import annotations

import msgspec
import pytest

from p2prl.protocol import frames
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Have, Push
from p2prl.protocol.manifests import Patch, blob_of
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm import signals
from p2prl.swarm.events import RunKnown, VersionReady
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.chunk_sets import to_bitmap
from p2prl_lab.testing.patched_swarm import PatchedSwarm
from p2prl_lab.testing.protocol_swarm import Member, ProtocolSwarm
from tests.sim.node_swarm import events_of, hello_of

MESSENGER = identity_of("messenger").peer_id
_WEIGHTS = 320_000
_UPLINK = 100_000.0
"""Bytes/s of the learner: it sends a version in some seconds."""

_SOON_S = 20.0
"""A newcomer has the older version by then: it looks at the newest for five seconds, and asks for manifests at most
every two."""


def left_alone() -> ProtocolSwarm:
    """Three volunteers hold version 2 and less than all of version 3; the learner is gone."""
    made = ProtocolSwarm(VirtualNetwork(1), weight_bytes=_WEIGHTS)
    made.add("learner", Role.LEARNER, upload_bytes_s=_UPLINK)
    for name in ("v0", "v1", "v2"):
        made.add(name, bootstrap=("learner",))
    made.network.run_for(5)
    for _ in range(3):
        made.publish(_WEIGHTS)
        made.network.run_for(30)
    made.publish(_WEIGHTS)
    made.network.run_for(1)
    made.network.crash(made.members["learner"].peer)
    made.network.run_for(60)
    for name in ("v0", "v1", "v2"):
        assert sorted(made.members[name].ready_at) == [0, 1, 2]
        assert len(events_of(made.members[name], signals.VersionAnnounced)) == 4
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


def announce(made: ProtocolSwarm, count: int) -> None:
    """Versions of which the volunteers get the manifests and nothing else."""
    learner = made.members["learner"]
    raw, manifest, _ = made.published[-1]
    for number in range(count):
        weights = blob_of(bytes([number]) * _WEIGHTS, 16_384)
        version, previous = manifest.version + 1, envelope_digest(raw)
        manifest = msgspec.structs.replace(manifest, version=version, step=version, weights=weights, previous=previous)
        raw = seal(learner.identity, manifest, run=made.run, now=made.network.now)
        for name in ("v0", "v1", "v2"):
            made.network.inject(
                MESSENGER, made.members[name].peer, hello_of(made.run, now=made.network.now) + frames.pack(Push(raw))
            )
        made.network.run_for(5)
    assert newest_announced(made.members["v0"]) == manifest.version


def newest_announced(member: Member) -> int:
    return max(event.version for event in member.events if isinstance(event, signals.VersionAnnounced))


@pytest.mark.parametrize("more", [1, 2])
def test_it_looks_for_older_versions_one_after_the_other(more: int) -> None:
    """As far as manifests are kept; each names the one before."""
    made = left_alone()
    announce(made, more)
    late = made.add("late", bootstrap=("v0", "v1", "v2"))
    made.network.run_for((more + 1) * _SOON_S)
    assert versions(late) == [2]


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


def patched_run(unfinished: int = 1) -> PatchedSwarm:
    """Versions 0 to 4 with patches; `lagging` has version 1, two others all. Of `unfinished` versions after that there
    are a head and manifests alone, and the learner is gone."""
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
    for version in range(5, 5 + unfinished):
        raw, last, now = made.published[-1]
        weights, patch = blob_of(bytes(last.weights.size_bytes), 4096), blob_of(bytes([version]) * 500, 4096)
        patches = (Patch(version - 1, last.weights_digest, patch),)
        previous = envelope_digest(raw)
        manifest = msgspec.structs.replace(
            last, version=version, step=version, weights=weights, previous=previous, patches=patches
        )
        made.published.append((seal(learner.identity, manifest, run=made.run, now=made.network.now), manifest, now))
        head = seal(learner.identity, made.head(), run=made.run, now=made.network.now)
        for member in followers:
            pushed = frames.pack(Push(head)) + frames.pack(Push(made.published[-1][0]))
            made.network.inject(MESSENGER, member.peer, hello_of(made.run, now=made.network.now) + pushed)
        made.network.run_for(5)
    made.network.run_for(90)
    assert [newest_announced(member) for member in followers] == [4 + unfinished] * 2
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


def test_of_many_versions_the_head_names_those_whose_manifests_are_kept() -> None:
    """The volunteers were slower than the learner: they hold version 4 of 11, and no manifests of 5 to 7."""
    made = patched_run(unfinished=7)
    late = made.add("late", bootstrap=("v0", "v1"), config=rebuilds)
    made.network.run_for(6 * _SOON_S)
    assert versions(late) == [4]


def test_who_was_away_takes_patches_to_the_newest_that_others_have() -> None:
    made = patched_run()
    lagging = made.members["lagging"]
    made.network.connect(lagging.peer, made.members["v0"].peer)
    made.network.run_for(2 * _SOON_S)
    assert max(lagging.ready_at) == 4
    assert made.network.node(lagging.peer).download_stats.full_bytes <= made.versions[0].nbytes, "but for its first"
