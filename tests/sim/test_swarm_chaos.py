"""Whole swarms under loss, reordering, partition, crashes and attacks, with invariants checked after every step."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from p2prl.protocol import frames
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import StorageReceipt
from p2prl.protocol.link_messages import Chunk, ChunkRequest, Have, Hello, Push
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.protocol.wire_version import WIRE_VERSION
from p2prl.sim.link_conditions import LinkConditions
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm.events import Command, Equivocation, PeerBanned, Send
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.relay_config import REQUEST_TIMEOUT_S
from p2prl_lab.testing.protocol_swarm import ProtocolSwarm, group_of
from tests.unit.swarm.relays import poisoned


class Invariants:
    """Invariants that hold after every step of every run."""

    def __init__(self, swarm: ProtocolSwarm) -> None:
        self.swarm = swarm
        self.read = dict.fromkeys(swarm.members, 0)
        self.liars: set[str] = set()
        swarm.network.check_always(self.check)

    def check(self) -> None:
        for name, member in self.swarm.members.items():
            seen = self.read.get(name, 0)
            if len(member.events) == seen:
                continue
            self.read[name] = len(member.events)
            for event in member.events[seen:]:
                context = f"seed {self.swarm.network.seed}, {name}, {self.swarm.network.elapsed:.3f} s: {event}"
                assert not isinstance(event, Equivocation), context
                assert not isinstance(event, PeerBanned) or event.peer in self.liars, (
                    f"an honest peer banned: {context}"
                )
            for version in member.ready_at:
                raw, manifest, _ = self.swarm.published[version]
                if member.store.holds(manifest.weights.root):
                    assert len(member.store.begin(manifest.weights)) == manifest.weights.total, envelope_digest(raw)


def build(
    seed: int, volunteers: int, links: LinkConditions, *, weight_bytes: int = 60_000
) -> tuple[ProtocolSwarm, Invariants]:
    swarm = ProtocolSwarm(VirtualNetwork(seed, links=links), weight_bytes=weight_bytes)
    swarm.add("learner", Role.LEARNER)
    for index in range(volunteers):
        swarm.add(f"v{index}", bootstrap=("learner",) if index < 3 else (f"v{index - 3}",))
    return swarm, Invariants(swarm)


def volunteers_with(swarm: ProtocolSwarm, version: int) -> set[str]:
    return {name for name, member in swarm.members.items() if version in member.ready_at}


def all_volunteers(swarm: ProtocolSwarm) -> set[str]:
    return {name for name, member in swarm.members.items() if member.role is Role.VOLUNTEER}


def groups_at_learner(swarm: ProtocolSwarm) -> set[bytes]:
    return {e.opened.digest for e in swarm.members["learner"].arrived() if isinstance(e.opened.body, RolloutGroup)}


def spool(swarm: ProtocolSwarm, name: str, slots: range, every_s: float = 20.0) -> list[bytes]:
    """Publish groups and repeat each until its storage receipt arrives, as a volunteer's spool does."""
    member = swarm.members[name]
    sealed = [seal(member.identity, group_of(slot), run=swarm.run, now=swarm.network.now) for slot in slots]

    def acknowledged() -> set[bytes]:
        bodies = [e.opened.body for e in member.arrived()]
        return {group for body in bodies if isinstance(body, StorageReceipt) for group in body.groups}

    def again() -> None:
        open_ = [raw for raw in sealed if envelope_digest(raw) not in acknowledged()]
        if swarm.network.is_up(member.peer):
            for raw in open_:
                swarm.network.node(member.peer).publish(raw, swarm.network.now)
            swarm.network.wake(member.peer)
        if open_:
            swarm.network.after(every_s, again)

    again()
    return [envelope_digest(raw) for raw in sealed]


@pytest.mark.parametrize("seed", range(2))
def test_loss_and_reordering(seed: int) -> None:
    swarm, _ = build(seed, 12, LinkConditions(loss=0.05, reorder=0.3))
    swarm.network.run_for(30)
    promised: list[bytes] = []
    for version in range(3):
        swarm.publish(60_000, chunk_bytes=4096)
        promised += [name for i in range(12) for name in spool(swarm, f"v{i}", range(version, version + 1))]
        swarm.network.run_for(60)
    swarm.network.run_for(60)
    assert volunteers_with(swarm, 2) == all_volunteers(swarm), f"seed {seed}"
    assert set(promised) <= groups_at_learner(swarm), f"seed {seed}"


@pytest.mark.parametrize("seed", range(2))
def test_partition_and_heal(seed: int) -> None:
    swarm, _ = build(100 + seed, 10, LinkConditions())
    network = swarm.network
    network.run_for(20)
    swarm.publish(60_000)
    network.run_for(15)
    names = sorted(all_volunteers(swarm))
    away = [swarm.members[name].peer for name in names[:5]]
    rest = [member.peer for member in swarm.members.values() if member.peer not in away]
    network.partition([away, rest], network.now, network.now + 180)
    promised = [name for i in names for name in spool(swarm, i, range(2))]
    network.run_for(60)
    swarm.publish(60_000)
    network.run_for(110)
    assert volunteers_with(swarm, 1) == set(names[5:]), f"seed {seed}"
    network.run_for(120)
    assert volunteers_with(swarm, 1) == set(names), f"seed {seed}"
    assert set(promised) <= groups_at_learner(swarm), f"seed {seed}"


def test_groups_and_receipts_are_forwarded() -> None:
    swarm, _ = build(5, 6, LinkConditions())
    network = swarm.network
    network.run_for(20)
    author = swarm.members["v5"]
    # The author and the learner can never reach each other; all other peers reach both.
    network.partition([[author.peer], [swarm.members["learner"].peer]], network.now, network.now + 1e6)
    network.run_for(80)
    assert ("learner", 1) not in network.node(author.peer).roles()
    promised = spool(swarm, "v5", range(3))
    network.run_for(60)
    assert set(promised) <= groups_at_learner(swarm)
    receipts = {g for e in author.arrived() if isinstance(e.opened.body, StorageReceipt) for g in e.opened.body.groups}
    assert set(promised) <= receipts


def test_a_stuck_group_is_forwarded_after_the_partition() -> None:
    swarm, _ = build(6, 4, LinkConditions())
    network = swarm.network
    network.run_for(20)
    learner, author = swarm.members["learner"].peer, swarm.members["v3"]
    network.partition(
        [[learner], [m.peer for m in swarm.members.values() if m.peer != learner]], network.now, network.now + 100
    )
    network.partition([[learner], [author.peer]], network.now, network.now + 1e6)
    network.run_for(60)
    promised = spool(swarm, "v3", range(1))
    network.run_for(20)
    assert not groups_at_learner(swarm)
    network.run_for(150)
    assert set(promised) <= groups_at_learner(swarm)


@pytest.mark.parametrize("seed", range(2))
def test_crashes_and_restarts(seed: int) -> None:
    swarm, _ = build(200 + seed, 10, LinkConditions(loss=0.01), weight_bytes=80_000)
    network, dice = swarm.network, random.Random(seed)
    network.run_for(20)
    promised = [name for i in range(10) for name in spool(swarm, f"v{i}", range(2))]
    for _ in range(6):
        swarm.publish(80_000, chunk_bytes=4096)
        victims = dice.sample(sorted(swarm.members), 3)
        for victim in victims:
            network.after(dice.random() * 3, lambda v=victim: network.crash(swarm.members[v].peer))  # type: ignore[misc]
            network.after(5 + dice.random() * 10, lambda v=victim: network.restart(swarm.members[v].peer))  # type: ignore[misc]
        network.run_for(20)
        if not swarm.published[-1][1].version % 2:
            # A learner that restarts publishes its newest manifest again, from its journal.
            learner = swarm.members["learner"].peer
            network.node(learner).publish(swarm.published[-1][0], network.now)
            network.wake(learner)
    learner = swarm.members["learner"].peer
    network.node(learner).publish(swarm.published[-1][0], network.now)
    network.wake(learner)
    network.run_for(90)
    assert volunteers_with(swarm, 5) == all_volunteers(swarm), f"seed {seed}"
    assert set(promised) <= groups_at_learner(swarm), f"seed {seed}"


class Poisoner(Node):
    """Serves every chunk with one byte changed."""

    poisoned = 0

    def commands(self, now: float) -> list[Command]:
        out: list[Command] = []
        for command in super().commands(now):
            if isinstance(command, Send) and command.bulk:
                (message,) = frames.unpack(command.frame)
                assert isinstance(message, Chunk)
                Poisoner.poisoned += 1
                command = replace(command, frame=frames.pack(poisoned(message)))
            out.append(command)
        return out


@pytest.mark.parametrize("seed", range(2))
def test_poisoners_are_banned_and_honest_peers_finish(seed: int) -> None:
    swarm, invariants = build(300 + seed, 8, LinkConditions(), weight_bytes=120_000)
    Poisoner.poisoned = 0
    for index in range(3):
        name = f"poisoner{index}"
        swarm.add(name, bootstrap=("learner",), build=Poisoner)
        invariants.liars.add(swarm.members[name].peer)
    swarm.network.run_for(20)
    for _ in range(3):
        swarm.publish(120_000, chunk_bytes=4096)
        swarm.network.run_for(30)
    honest = {name for name in all_volunteers(swarm) if not name.startswith("poisoner")}
    assert honest <= volunteers_with(swarm, 2), f"seed {seed}"
    assert Poisoner.poisoned > 0, f"seed {seed}: no poisoner was asked, so nothing was tested"
    banned = {e.peer for m in swarm.members.values() for e in m.events if isinstance(e, PeerBanned)}
    assert banned == invariants.liars


def test_a_flood_of_junk() -> None:
    swarm, invariants = build(400, 6, LinkConditions())
    network, dice = swarm.network, random.Random(1)
    flooders = [identity_of(f"flooder{i}").peer_id for i in range(4)]
    invariants.liars |= set(flooders)
    hello = frames.pack(Hello(WIRE_VERSION, swarm.run, int(Role.VOLUNTEER), int(network.now * 1000), -1, 0))
    have = frames.pack(Have(bytes(32), b"\xff" * 100))

    def flood() -> None:
        for flooder in flooders:
            for member in list(swarm.members.values()):
                junk = dice.choice([dice.randbytes(200), frames.pack(Push(dice.randbytes(90))), have])
                network.inject(flooder, member.peer, hello)
                network.inject(
                    flooder, member.peer, junk + frames.pack(ChunkRequest(dice.randbytes(32), dice.randrange(4)))
                )
        network.after(0.5, flood)

    flood()
    network.run_for(20)
    swarm.publish(60_000)
    promised = spool(swarm, "v0", range(3))
    network.run_for(30)
    assert volunteers_with(swarm, 0) == all_volunteers(swarm)
    assert set(promised) <= groups_at_learner(swarm)
    banned = {e.peer for e in swarm.members["learner"].events if isinstance(e, PeerBanned)}
    assert banned == set(flooders)


@pytest.mark.parametrize("peers", [8, 16])
def test_learner_uploads_about_one_copy(peers: int) -> None:
    size = 500_000
    swarm, _ = build(500, peers, LinkConditions(), weight_bytes=size)
    swarm.network.run_for(30)
    for _ in range(4):
        swarm.publish(size, chunk_bytes=8192)
        swarm.network.run_for(20)
    assert volunteers_with(swarm, 3) == all_volunteers(swarm)
    copies = swarm.network.node(swarm.members["learner"].peer).relay_stats.sent / (4 * size)
    assert 1.0 <= copies <= 1.3, copies
    stats = [swarm.network.node(m.peer).relay_stats for m in swarm.members.values()]
    assert sum(s.wasted for s in stats) <= 0.01 * 4 * size * peers


def test_a_stalled_holder_delays_a_version_by_one_timeout() -> None:
    class Stalled(Node):
        """Claims to have all chunks but answers no request."""

        def commands(self, now: float) -> list[Command]:
            return [c for c in super().commands(now) if not (isinstance(c, Send) and c.bulk)]

    swarm, _ = build(600, 5, LinkConditions(), weight_bytes=200_000)
    swarm.add("stalled", bootstrap=("learner",), build=Stalled)
    swarm.network.run_for(20)
    swarm.publish(200_000, chunk_bytes=4096)
    swarm.network.run_for(20)
    swarm.publish(200_000, chunk_bytes=4096)
    swarm.network.run_for(40)
    honest = all_volunteers(swarm) - {"stalled"}
    _, _, at = swarm.published[1]
    slowest = max(swarm.members[name].ready_at[1] - at for name in honest)
    assert slowest < 2 * REQUEST_TIMEOUT_S


def test_a_slow_peer_still_completes_versions() -> None:
    swarm, _ = build(700, 3, LinkConditions(), weight_bytes=200_000)
    slow = swarm.add(
        "slow", bootstrap=("learner",), config=lambda role: NodeConfig(role=role), download_bytes_s=12_000.0
    )
    swarm.network.run_for(20)
    for _ in range(12):
        swarm.publish(200_000)
        swarm.network.run_for(10)
    assert len(slow.ready_at) >= 3, "a download in progress is not abandoned for a newer version"
    assert len(slow.ready_at) < 12
