"""Versions that arrive as patches: cheap ways taken, wrong ones left, liars found, and words the same to the bit."""

from __future__ import annotations

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.protocol import frames
from p2prl.protocol.envelope import envelope_digest, open_envelope, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Chunk, Push
from p2prl.protocol.manifests import PolicyManifest
from p2prl.protocol.policy_head import PolicyHead
from p2prl.sim.broadcast_swarm import Member, identity_of
from p2prl.sim.virtual_network import LinkConfig, VirtualNetwork
from p2prl.swarm.events import Command, Equivocation, LearnerSilent, PatchesReady, PeerBanned, Send, VersionReady
from p2prl.swarm.node import Node, NodeConfig
from p2prl.swarm.relay.relay import Relay
from p2prl.testing.patched_swarm import PatchedSwarm

WHOLE = 40_000
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


def test_the_deadline_a_relay_remembers_is_the_one_it_would_work_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With versions arriving, neighbours coming and going, and chunks lost."""
    asked = 0

    def next_deadline(relay: Relay) -> float | None:
        nonlocal asked
        asked += 1
        remembered = remember(relay)
        relay._deadline_stands = False
        assert remember(relay) == remembered
        return remembered

    remember = Relay.next_deadline
    monkeypatch.setattr(Relay, "next_deadline", next_deadline)
    made = PatchedSwarm(VirtualNetwork(3, links=LinkConfig(loss=0.1)))
    made.add("learner", Role.LEARNER, config=rebuilds)
    members = [join(made, f"v{index}") for index in range(4)]
    run_on(made, 2)
    made.network.crash(members[0].peer)
    run_on(made, 2)
    made.network.restart(members[0].peer)
    run_on(made, 1)
    assert asked > 1000


def cost(made: PatchedSwarm, member: Member) -> tuple[int, int]:
    stats = made.network.node(member.peer).fetch_stats
    return stats.patch_bytes, stats.whole_bytes


def bases(member: Member) -> list[int]:
    """How many patches each rebuilt version took."""
    return [len(event.patches) for event in member.events if isinstance(event, PatchesReady)]


def test_followers_take_one_patch_a_version_and_hold_the_learners_words() -> None:
    made = swarm()
    run_on(made, 6)
    for name in ("v0", "v1", "v2"):
        member = made.members[name]
        assert made.words_of(member, 5) == made.versions[5].tobytes()
        assert sorted(member.ready_at) == list(range(6))
        assert bases(member) == [1] * 5
        patched, whole = cost(made, member)
        assert whole == WHOLE, "version 0, and nothing else"
        assert patched < 5 * WHOLE / 10
    assert made.refused == []


def test_a_seeder_takes_patches_too_and_serves_the_weights_they_lead_to() -> None:
    made = swarm(volunteers=0)
    run_on(made, 1)
    seeder = made.add(
        "seeder", Role.SEEDER, bootstrap=("learner",), config=lambda role: NodeConfig(role=role, rebuilds=True)
    )
    run_on(made, 4)
    patched, whole = cost(made, seeder)
    assert whole == WHOLE
    assert patched < 4 * WHOLE / 10
    made.network.crash(made.members["learner"].peer)
    late = made.add("late", bootstrap=("seeder",))  # it decodes nothing: every chunk of the weights comes whole
    made.network.run_for(60.0)
    assert late.store.whole(made.published[4][1].weights) == made.versions[4].tobytes()


def seeded(made: PatchedSwarm, *, behind: Member | None = None) -> Member:
    """A seeder that has been restarted with what it holds; `behind` was down when the last version came."""
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


def test_a_restarted_seeder_goes_on_serving_the_patches_it_has() -> None:
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
    patched, whole = cost(made, behind)
    assert whole == 0, "nobody else is here, and its patches are"
    assert 0 < patched < WHOLE


def test_a_restarted_seeder_lets_go_of_patches_with_their_versions() -> None:
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


def test_a_peer_sixteen_versions_behind_takes_the_cheapest_way() -> None:
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
    patched, whole = cost(made, away)
    assert whole == 0
    rebuilt = [event for event in away.events if isinstance(event, PatchesReady)][-1]
    assert rebuilt.manifest.version == 18
    # 2→3→4→8→12→16→17→18, and never sixteen single steps.
    assert len(rebuilt.patches) == 7
    chain = sum(made.published[v][1].patches[0].blob.size_bytes for v in range(3, 19))
    assert patched < 0.75 * chain


def test_a_newcomer_takes_the_keyframe_where_that_is_cheaper_and_the_weights_where_not() -> None:
    made = swarm(volunteers=1)
    run_on(made, 2)
    made.advance(keyframe=True)
    run_on(made, 1)
    late = join(made, "late")
    made.network.run_for(60.0)
    assert made.words_of(late, 3) == made.versions[3].tobytes()
    patched, whole = cost(made, late)
    assert whole == 0
    keyframe = made.published[2][1].patch_from(-1)
    assert keyframe is not None
    assert patched == keyframe.blob.size_bytes + made.published[3][1].patches[0].blob.size_bytes < WHOLE


def test_newcomers_are_served_whole_weights_by_those_that_rebuilt_them() -> None:
    made = swarm(volunteers=4)
    run_on(made, 3)
    made.network.crash(made.members["learner"].peer)
    late = join(made, "late", "v0", "v1")
    made.network.run_for(90.0)
    assert made.words_of(late, 2) == made.versions[2].tobytes()


def test_a_patch_that_leads_elsewhere_is_left_for_the_next_way_and_nobody_loops() -> None:
    made = swarm(volunteers=2)
    run_on(made, 3)
    made.advance(spoil=True)
    made.network.run_for(60.0)
    for name in ("v0", "v1"):
        member = made.members[name]
        assert made.words_of(member, 3) == made.versions[3].tobytes(), "fetched whole in the end"
        assert made.refused.count((name, 3)) == 1
    run_on(made, 1)
    assert bases(made.members["v0"])[-1] == 1, "the next version comes by patch again"


class Poisoner(Node):
    """Serves other bytes than it was asked for."""

    def commands(self, now: float) -> list[Command]:
        commands = super().commands(now)
        return [self._spoilt(c) if isinstance(c, Send) and c.bulk else c for c in commands]

    def _spoilt(self, command: Send) -> Send:
        (chunk,) = frames.unpack(command.frame)
        assert isinstance(chunk, Chunk)
        return Send(command.peer, frames.pack(Chunk(bytes(len(chunk.data)))), bulk=True)


def test_whoever_serves_corrupt_patch_chunks_is_banned_at_the_first_and_nobody_decodes_one() -> None:
    made = swarm(volunteers=2)
    liar = join(made, "liar", build=Poisoner)
    run_on(made, 4)
    join(made, "victim", "liar", "v0")
    made.network.run_for(60.0)
    run_on(made, 2)
    for name in ("v0", "v1", "victim"):
        assert made.words_of(made.members[name], 5) == made.versions[5].tobytes()
    assert made.refused == []
    banned = [e.peer for m in made.members.values() for e in m.events if isinstance(e, PeerBanned)]
    assert set(banned) <= {liar.peer}
    assert liar.peer in banned


def test_a_head_and_a_manifest_that_disagree_are_proof() -> None:
    made = swarm(volunteers=1)
    run_on(made, 2)
    key = identity_of("learner")
    raw, newest, _ = made.published[-1]
    twin = PolicyManifest(1, 1, newest.weights, newest.weights_digest, newest.previous, bytes(32), 0)
    head = made.head()
    forked = seal(key, twin, run=made.run, now=made.network.now)
    lie = PolicyHead(1, envelope_digest(forked), 0, WHOLE, (), head.target_ms, head.expires_ms)
    node = made.network.node(made.members["v0"].peer)
    opened = open_envelope(seal(key, lie, run=made.run, now=made.network.now + 1), now=None)
    with pytest.raises(RemoteProtocolError):
        node._admit_policy(opened, made.network.now, own=False)
    proof = node.next_event()
    while proof is not None and not isinstance(proof, Equivocation):
        proof = node.next_event()
    assert isinstance(proof, Equivocation)
    assert {proof.first, proof.second} == {raw, opened.raw}


def test_silence_is_told_once_and_ends_with_the_next_head() -> None:
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


def test_an_old_head_takes_nobody_back() -> None:
    made = swarm(volunteers=2)
    run_on(made, 1)
    old = made.head()
    run_on(made, 3)
    member = made.members["v0"]
    node = made.network.node(member.peer)
    following = node._following
    assert following is not None
    before = following.head
    assert before is not None
    assert before.head.version == 3
    late = seal(identity_of("learner"), old, run=made.run, now=made.network.now)
    node.receive(frames.pack(Push(late)), made.members["v1"].peer, made.network.now)
    assert following.head is before


@pytest.mark.parametrize("budget", [WHOLE + 10_000, 10 * WHOLE])
def test_the_disk_budget_lets_go_of_the_oldest_and_never_of_the_newest(budget: int) -> None:
    made = swarm(volunteers=1)
    thrifty = join(made, "thrifty", disk_bytes=budget)
    run_on(made, 8)
    ready = [e.manifest.version for e in thrifty.events if isinstance(e, VersionReady)]
    assert ready == list(range(8))
    assert made.words_of(thrifty, 7) == made.versions[7].tobytes()
    held = [v for v in range(8) if thrifty.store.holds(made.published[v][1].weights.root)]
    assert held == ([7] if budget < 2 * WHOLE else [4, 5, 6, 7])
    assert thrifty.store.size_bytes <= max(budget, WHOLE + 20_000)
