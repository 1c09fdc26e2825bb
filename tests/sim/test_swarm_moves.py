"""A learner that comes back at another address, with real node cores, memories and redialing on virtual time."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import partial

import pytest

from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.protocol.policy_head import PolicyHead
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm.events import RunKnown
from p2prl.swarm.peers.peer_memory import MAX_REMEMBERED, PeerMemory
from p2prl.swarm.peers.redialing import Redialer
from p2prl_lab.testing.protocol_swarm import Member, ProtocolSwarm
from tests.sim.node_swarm import hello_of

OLD, NEW = "/ip4/20.0.0.1/tcp/4001", "/ip4/91.7.7.7/tcp/4002"


@dataclass
class Keeper:
    """What `p2prl.net.process.link_keeper` does, for one member."""

    swarm: ProtocolSwarm
    member: Member
    named: tuple[str, ...]
    file: bytes = b""

    def start(self) -> None:
        network, peer = self.swarm.network, self.member.peer
        learner = self.swarm.members["learner"].peer
        self.memory = PeerMemory(self.swarm.run, peer, learner)
        self.memory.restore(self.file, network.now)
        named = [(self.swarm.members["learner"].peer, address) for address in self.named]
        rng = random.Random(f"redial/{network.seed}/{self.member.name}")
        self.redialer = Redialer(named, rng, network.now, is_learner=self.member.role is Role.LEARNER)
        self._turn(self.redialer)

    def _turn(self, of: Redialer) -> None:
        network, peer = self.swarm.network, self.member.peer
        if not network.is_up(peer) or of is not self.redialer:
            return
        node, now = network.node(peer), network.now
        self.memory.note(node.connections.linked_records(), now)
        self.file = self.memory.to_bytes()
        roles = dict(node.roles())
        remembered = self.memory.addresses(node.dial_rules)
        owners = {address: owner for owner, address in remembered}
        for address in of.due(
            remembered,
            now,
            learner=self.memory.learner,
            has_learner="learner" in roles,
            links=sum(roles.values()),
            is_linked=lambda other: node.link_class(other, now) is not None,
        ):
            owner = owners.get(address, self.swarm.members["learner"].peer)
            network.connect(peer, owner, address)
            network.after(10.0, partial(self._failed, of, address))
        network.after(1.0, lambda: self._turn(of))

    def _failed(self, of: Redialer, address: str) -> None:
        of.failed(address, self.swarm.network.now)


def build(seed: int, *, seeders: int, volunteers: int) -> tuple[ProtocolSwarm, dict[str, Keeper]]:
    network = VirtualNetwork(seed, directory_needs_links=True)
    swarm = ProtocolSwarm(network, weight_bytes=20_000)
    keepers = {}
    names = ["learner", *(f"seeder{i}" for i in range(seeders)), *(f"v{i}" for i in range(volunteers))]
    for index, name in enumerate(names):
        role = Role.LEARNER if name == "learner" else Role.SEEDER if name.startswith("s") else Role.VOLUNTEER
        network.place(identity_of(name).peer_id, OLD if index == 0 else f"/ip4/{20 + index}.1.1.1/tcp/4001")
        member = swarm.add(name, role, dialable=role is not Role.VOLUNTEER)
        keepers[name] = Keeper(swarm, member, () if index == 0 else (OLD,))
        keepers[name].start()
    return swarm, keepers


def move_learner(swarm: ProtocolSwarm, keepers: dict[str, Keeper], *, away_s: float) -> None:
    network, learner = swarm.network, swarm.members["learner"].peer
    network.crash(learner)
    network.run_for(away_s)
    network.place(learner, NEW)
    network.restart(learner)
    keepers["learner"].start()


def found_after(swarm: ProtocolSwarm, names: list[str], *, limit_s: int) -> float | None:
    """Seconds until all of these have the learner as a neighbor.

    Messages between linked peers follow a machine that moves, which sockets do not: so it stays away until links end.
    """
    network = swarm.network
    for second in range(limit_s + 1):
        if all("learner" in dict(network.node(swarm.members[name].peer).roles()) for name in names):
            return second
        network.run_for(1.0)
    return None


@pytest.mark.parametrize("away_s", [40.0, 130.0])
def test_homes_find_a_learner_that_moved_through_one_public_peer(away_s: float) -> None:
    swarm, keepers = build(1, seeders=1, volunteers=6)
    swarm.publish(20_000)
    swarm.network.run_for(60)
    assert found_after(swarm, list(keepers)[1:], limit_s=0) == 0
    move_learner(swarm, keepers, away_s=away_s)
    found = found_after(swarm, list(keepers)[1:], limit_s=60)
    assert found is not None
    assert found <= 30
    groups = {swarm.deliver(f"v{i}", 100 + i) for i in range(6)}
    swarm.network.run_for(5)
    assert groups <= {event.opened.digest for event in swarm.members["learner"].arrived()}


def test_without_its_memory_the_learner_would_be_lost() -> None:
    swarm, keepers = build(1, seeders=1, volunteers=3)
    swarm.network.run_for(60)
    network, learner = swarm.network, swarm.members["learner"].peer
    network.crash(learner)
    network.run_for(40)
    keepers["learner"].file = b""
    move_learner(swarm, keepers, away_s=0)
    assert found_after(swarm, list(keepers)[1:], limit_s=60) is None


def test_volunteers_that_restart_with_a_dead_link_find_the_run() -> None:
    """All at once: the learner is elsewhere, and every home starts again with its file and the old link."""
    swarm, keepers = build(2, seeders=2, volunteers=4)
    network = swarm.network
    network.run_for(60)
    homes = [f"v{i}" for i in range(4)]
    move_learner(swarm, keepers, away_s=40)
    for name in homes:
        network.crash(swarm.members[name].peer)
    network.run_for(60)
    for name in homes:
        network.restart(swarm.members[name].peer)
        keepers[name].start()
    found = found_after(swarm, homes, limit_s=60)
    assert found is not None
    assert found <= 30


def test_a_flood_of_false_peers_neither_fills_memories_nor_hides_the_learner() -> None:
    """Strangers of 40 subnets link to all public peers, pose as seeders or the learner, and name false addresses."""
    swarm, keepers = build(3, seeders=2, volunteers=4)
    network = swarm.network
    network.run_for(40)
    victims = [swarm.members[name].peer for name in ("learner", "seeder0", "seeder1")]
    rng = random.Random(3)
    for index in range(120):
        stranger = identity_of(f"stranger/{index}")
        network.add_stranger(stranger.peer_id, f"/ip4/66.6.{index % 40}.{index // 40 + 1}/tcp/4001")
        false = tuple(f"/ip4/{rng.randrange(70, 90)}.{rng.randrange(256)}.3.3/tcp/4001" for _ in range(2))
        role = Role.LEARNER if index % 3 == 0 else Role.SEEDER
        raw = seal(stranger, PeerRecord(int(role), false, 0, 0), run=swarm.run, now=network.now)
        network.put_record(swarm.run, stranger.peer_id, raw, network.now + 3_600)
        for victim in victims:
            network.inject(stranger.peer_id, victim, hello_of(swarm.run, now=network.now, role=role))
    network.run_for(60)
    known = {peer for peer, _ in keepers["learner"].memory.addresses(network.node(victims[0]).dial_rules)}
    assert {swarm.members[f"seeder{i}"].peer for i in range(2)} <= known
    assert len(keepers["learner"].memory) < MAX_REMEMBERED
    move_learner(swarm, keepers, away_s=40)
    found = found_after(swarm, [name for name in keepers if name != "learner"], limit_s=90)
    assert found is not None
    assert found <= 60


def test_a_newcomer_joins_and_follows_through_a_seeder_ten_minutes_after_the_learner_left() -> None:
    swarm, _ = build(4, seeders=1, volunteers=0)
    network = swarm.network
    network.run_for(10)
    data = random.Random(4).randbytes(20_000)
    policy = swarm.publish(0, data=data)
    now_ms = int(network.now * 1000)
    manifest = envelope_digest(swarm.published[-1][0])
    swarm.say(PolicyHead(0, manifest, 0, policy.weights.size_bytes, (), now_ms, now_ms + 60_000))
    network.run_for(20)
    network.crash(swarm.members["learner"].peer)
    network.run_for(600)
    newcomer = swarm.add("newcomer", bootstrap=("seeder0",), dialable=False)
    network.run_for(15)
    assert [event for event in newcomer.events if isinstance(event, RunKnown)]
    assert 0 in newcomer.ready_at
    assert newcomer.store.whole(policy.weights) == data
