"""Versions downloaded as patches: cheapest routes, wrong patches, poisoners, equal weights to the bit."""

from __future__ import annotations

import msgspec
import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import frames
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Chunk, Push
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.policy_head import PolicyHead
from p2prl.sim.link_conditions import LinkConditions
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm.events import Command, Equivocation, LearnerSilent, PatchesReady, PeerBanned, Send, VersionReady
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl_lab.testing.patched_swarm import PatchedSwarm
from p2prl_lab.testing.protocol_swarm import Member

FULL = 40_000
"""Bytes of a version's weights."""


def rebuilds(role: Role, *, disk_bytes: int = 0) -> NodeConfig:
    keep = 64 if role is Role.LEARNER else 4
    return NodeConfig(role=role, rebuilds=role is Role.VOLUNTEER, keep_versions=keep, disk_bytes=disk_bytes)


def swarm(seed: int = 1, volunteers: int = 3) -> PatchedSwarm:
    made = PatchedSwarm(VirtualNetwork(seed))
    made.add("learner", Role.LEARNER, config=rebuilds)
    for index in range(volunteers):
        join(made, f"v{index}")
    return made


def join(made: PatchedSwarm, name: str, *bootstrap: str, build: type[Node] = Node, disk_bytes: int = 0) -> Member:
    return made.add(
        name,
        bootstrap=bootstrap or ("learner",),
        build=build,
        config=lambda role: rebuilds(role, disk_bytes=disk_bytes),
    )


def run_on(made: PatchedSwarm, versions: int, *, every_s: float = 30.0) -> None:
    for _ in range(versions):
        made.advance()
        made.network.run_for(every_s)


def test_cached_relay_deadline_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """With versions arriving, neighbors joining and leaving, and chunks lost."""
    asked = 0

    def next_deadline(relay: Relay) -> float | None:
        nonlocal asked
        asked += 1
        remembered = remember(relay)
        relay._deadline_valid = False
        assert remember(relay) == remembered
        return remembered

    remember = Relay.next_deadline
    monkeypatch.setattr(Relay, "next_deadline", next_deadline)
    made = PatchedSwarm(VirtualNetwork(3, links=LinkConditions(loss=0.1)))
    made.add("learner", Role.LEARNER, config=rebuilds)
    members = [join(made, f"v{index}") for index in range(4)]
    run_on(made, 2)
    made.network.crash(members[0].peer)
    run_on(made, 2)
    made.network.restart(members[0].peer)
    run_on(made, 1)
    assert asked > 1000


def cost(made: PatchedSwarm, member: Member) -> tuple[int, int]:
    stats = made.network.node(member.peer).download_stats
    return stats.patch_bytes, stats.full_bytes


def patch_counts(member: Member) -> list[int]:
    """Number of patches of each rebuilt version."""
    return [len(event.patches) for event in member.events if isinstance(event, PatchesReady)]


def test_followers_download_one_patch_per_version() -> None:
    made = swarm()
    run_on(made, 6)
    for name in ("v0", "v1", "v2"):
        member = made.members[name]
        assert made.words_of(member, 5) == made.versions[5].tobytes()
        assert sorted(member.ready_at) == list(range(6))
        assert patch_counts(member) == [1] * 5
        patched, full = cost(made, member)
        assert full == FULL, "version 0, and nothing else"
        assert patched < 5 * FULL / 10
    assert made.refused == []


def test_a_version_equal_to_the_one_before_costs_nothing() -> None:
    made = swarm()
    run_on(made, 2)
    before = cost(made, made.members["v0"])
    made.advance(unchanged=True)
    made.network.run_for(30.0)
    member = made.members["v0"]
    assert sorted(member.ready_at) == [0, 1, 2]
    assert made.words_of(member, 2) == made.versions[1].tobytes()
    assert cost(made, member) == before
    assert made.network.node(member.peer).download_stats.version_bytes == 3 * FULL


def test_a_seeder_rebuilds_and_serves_full_weights() -> None:
    made = swarm(volunteers=0)
    run_on(made, 1)
    seeder = made.add(
        "seeder", Role.SEEDER, bootstrap=("learner",), config=lambda role: NodeConfig(role=role, rebuilds=True)
    )
    run_on(made, 4)
    patched, full = cost(made, seeder)
    assert full == FULL
    assert patched < 4 * FULL / 10
    made.network.crash(made.members["learner"].peer)
    late = made.add("late", bootstrap=("seeder",))  # it decodes no patches: it downloads full weights
    made.network.run_for(60.0)
    assert late.store.whole(made.published[4][1].weights) == made.versions[4].tobytes()


def seeded(made: PatchedSwarm, *, behind: Member | None = None) -> Member:
    """A seeder restarted with its stored versions; `behind` was down when the last version was published."""
    seeder = made.add(
        "seeder", Role.SEEDER, bootstrap=("learner",), config=lambda role: NodeConfig(role=role, rebuilds=True)
    )
    run_on(made, 2)
    if behind is not None:
        made.network.crash(behind.peer)
    run_on(made, 1)
    made.network.crash(seeder.peer)
    made.network.restart(seeder.peer)
    held = [raw for raw, manifest, _ in made.published if seeder.store.holds(manifest.weights.root)]
    assert len(held) >= 3
    made.network.node(seeder.peer).begin(made.manifest, held)
    made.network.connect(seeder.peer, made.members["learner"].peer)
    made.network.run_for(5.0)
    return seeder


def test_a_restarted_seeder_serves_its_patches() -> None:
    made = swarm(volunteers=1)
    run_on(made, 3)
    behind = made.members["v0"]
    seeder = seeded(made, behind=behind)
    made.network.crash(made.members["learner"].peer)
    held = [made.published[v][0] for v in sorted(behind.ready_at)[-4:]]
    made.network.restart(behind.peer)
    made.network.node(behind.peer).begin(made.manifest, held)
    made.network.connect(behind.peer, seeder.peer)
    made.network.run_for(60.0)
    assert made.words_of(behind, 5) == made.versions[5].tobytes()
    patched, full = cost(made, behind)
    assert full == 0, "only the seeder is left, and it has the patches"
    assert 0 < patched < FULL


def test_a_restarted_seeder_drops_patches_with_their_versions() -> None:
    made = swarm(volunteers=0)
    run_on(made, 3)
    seeder = seeded(made)
    run_on(made, 6)
    for _, manifest, _ in made.published[:8]:
        assert not any(seeder.store.holds(patch.blob.root) for patch in manifest.patches), manifest.version
    for _, manifest, _ in made.published[8:]:
        assert all(seeder.store.holds(patch.blob.root) for patch in manifest.patches), manifest.version


def test_one_seed_is_one_trace() -> None:
    traces = set()
    for _ in range(2):
        made = swarm(seed=4)
        run_on(made, 5)
        traces.add(made.network.trace)
    assert len(traces) == 1


def test_sixteen_versions_behind_takes_the_cheapest_route() -> None:
    made = swarm(volunteers=2)
    run_on(made, 3)
    away = made.members["v1"]
    held = [made.published[v][0] for v in sorted(away.ready_at)]
    made.network.crash(away.peer)
    run_on(made, 16)
    made.network.restart(away.peer)
    made.network.node(away.peer).begin(made.manifest, held)
    made.network.connect(away.peer, made.members["learner"].peer)
    made.network.run_for(60.0)
    assert made.words_of(away, 18) == made.versions[18].tobytes()
    patched, full = cost(made, away)
    assert full == 0
    rebuilt = [event for event in away.events if isinstance(event, PatchesReady)][-1]
    assert rebuilt.manifest.version == 18
    # 2→3→4→8→12→16→17→18, not sixteen single steps.
    assert len(rebuilt.patches) == 7
    chain = sum(made.published[v][1].patches[0].blob.size_bytes for v in range(3, 19))
    assert patched < 0.75 * chain


def test_a_newcomer_takes_a_cheaper_keyframe() -> None:
    made = swarm(volunteers=1)
    run_on(made, 2)
    made.advance(keyframe=True)
    run_on(made, 1)
    late = join(made, "late")
    made.network.run_for(60.0)
    assert made.words_of(late, 3) == made.versions[3].tobytes()
    patched, full = cost(made, late)
    assert full == 0
    keyframe = made.published[2][1].patch_from(-1)
    assert keyframe is not None
    assert patched == keyframe.blob.size_bytes + made.published[3][1].patches[0].blob.size_bytes < FULL


def test_rebuilt_weights_are_served_to_newcomers() -> None:
    made = swarm(volunteers=4)
    run_on(made, 3)
    made.network.crash(made.members["learner"].peer)
    late = join(made, "late", "v0", "v1")
    made.network.run_for(90.0)
    assert made.words_of(late, 2) == made.versions[2].tobytes()


def test_a_wrong_patch_is_tried_once() -> None:
    made = swarm(volunteers=2)
    run_on(made, 3)
    made.advance(spoil=True)
    made.network.run_for(60.0)
    for name in ("v0", "v1"):
        member = made.members[name]
        assert made.words_of(member, 3) == made.versions[3].tobytes(), "downloaded as full weights in the end"
        assert made.refused.count((name, 3)) == 1
    run_on(made, 1)
    assert patch_counts(made.members["v0"])[-1] == 1, "the next version is downloaded as a patch again"


def test_a_run_with_patches_of_an_earlier_format_goes_on() -> None:
    """As a learner whose folder holds versions that an earlier program published."""
    made = swarm(volunteers=2)
    run_on(made, 3)
    made.advance(outdated=True)
    made.network.run_for(60.0)
    for name in ("v0", "v1"):
        assert made.words_of(made.members[name], 3) == made.versions[3].tobytes()
        assert made.refused.count((name, 3)) == 1
    run_on(made, 1)
    assert patch_counts(made.members["v0"])[-1] == 1, "the next version is downloaded as a patch again"


class Poisoner(Node):
    """Serves wrong bytes, and counts the chunks."""

    served = 0

    def commands(self, now: float) -> list[Command]:
        commands = super().commands(now)
        return [self._corrupted(c) if isinstance(c, Send) and c.bulk else c for c in commands]

    def _corrupted(self, command: Send) -> Send:
        Poisoner.served += 1
        (chunk,) = frames.unpack(command.frame)
        assert isinstance(chunk, Chunk)
        return Send(command.peer, frames.pack(msgspec.structs.replace(chunk, data=bytes(len(chunk.data)))), bulk=True)


def test_corrupt_patch_chunks_ban_and_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is asked for a chunk is a matter of luck, so several swarms are tried."""
    asked = 0
    for seed in range(4):
        monkeypatch.setattr(Poisoner, "served", 0)
        made = swarm(seed, volunteers=2)
        liar = join(made, "liar", build=Poisoner)
        run_on(made, 4)
        join(made, "victim", "liar", "v0")
        made.network.run_for(60.0)
        run_on(made, 2)
        for name in ("v0", "v1", "victim"):
            assert made.words_of(made.members[name], 5) == made.versions[5].tobytes()
        assert made.refused == []
        banned = {e.peer for m in made.members.values() for e in m.events if isinstance(e, PeerBanned)}
        assert banned == ({liar.peer} if Poisoner.served else set())
        asked += bool(Poisoner.served)
    assert asked >= 3


def test_head_against_manifest_is_equivocation() -> None:
    made = swarm(volunteers=1)
    run_on(made, 2)
    key = identity_of("learner")
    raw, newest, _ = made.published[-1]
    twin = PolicyManifest(1, 1, newest.weights, newest.weights_digest, newest.previous, bytes(32), 0)
    head = made.head()
    forked = seal(key, twin, run=made.run, now=made.network.now)
    lie = PolicyHead(1, envelope_digest(forked), 0, FULL, (), head.target_ms, head.expires_ms)
    node = made.network.node(made.members["v0"].peer)
    opened = open_envelope(seal(key, lie, run=made.run, now=made.network.now + 1), now=None)
    assert node._running is not None
    with pytest.raises(RemoteProtocolError):
        node._running.admit_own(opened, made.network.now)
    proof = node.next_event()
    while proof is not None and not isinstance(proof, Equivocation):
        proof = node.next_event()
    assert isinstance(proof, Equivocation)
    assert {proof.first, proof.second} == {raw, opened.raw}


def test_learner_silence_is_reported_once_per_head() -> None:
    made = swarm(volunteers=1)
    run_on(made, 2)
    made.network.run_for(1000.0)
    member = made.members["v0"]

    def silences() -> list[int]:
        return [event.version for event in member.events if isinstance(event, LearnerSilent)]

    assert silences() == [1]
    made.say(made.head())
    made.network.run_for(30.0)
    assert silences() == [1]
    made.network.run_for(1000.0)
    assert silences() == [1, 1]


def test_an_old_head_is_ignored() -> None:
    made = swarm(volunteers=2)
    run_on(made, 1)
    old = made.head()
    run_on(made, 3)
    member = made.members["v0"]
    node = made.network.node(member.peer)
    assert node._running is not None
    policies = node._running._policies
    before = policies.head
    assert before is not None
    assert before.head.version == 3
    late = seal(identity_of("learner"), old, run=made.run, now=made.network.now)
    node.receive(frames.pack(Push(late)), made.members["v1"].peer, made.network.now)
    assert policies.head is before


@pytest.mark.parametrize("budget", [2 * FULL, 2 * FULL + 10_000, 10 * FULL])
def test_disk_budget_drops_the_oldest_versions(budget: int) -> None:
    made = swarm(volunteers=1)
    thrifty = join(made, "thrifty", disk_bytes=budget)
    run_on(made, 8)
    ready = [e.manifest.version for e in thrifty.events if isinstance(e, VersionReady)]
    assert ready == list(range(8))
    assert made.words_of(thrifty, 7) == made.versions[7].tobytes()
    held = [v for v in range(8) if thrifty.store.holds(made.published[v][1].weights.root)]
    assert held == ([6, 7] if budget < 3 * FULL else [4, 5, 6, 7])
    assert thrifty.store.size_bytes <= budget
