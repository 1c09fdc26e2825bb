"""Introductions by the learner, in whole swarms."""

from __future__ import annotations

import statistics

from p2prl.protocol import frames
from p2prl.protocol.envelope import open_envelope, seal
from p2prl.protocol.kinds import Kind, Role
from p2prl.protocol.link_messages import Push
from p2prl.protocol.peer_messages import Introduction
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm.events import Command, PeerBanned, Send
from p2prl.swarm.node import Node
from p2prl_lab.testing.protocol_swarm import ProtocolSwarm
from tests.sim.node_swarm import events_of, hello_of, swarm


def link_count(made: ProtocolSwarm, name: str) -> int:
    return sum(count for _, count in made.network.node(made.members[name].peer).roles())


def without_introductions(command: Command) -> list[Command]:
    if not isinstance(command, Send):
        return [command]
    kept = [
        frames.pack(message)
        for message in frames.unpack(command.frame)
        if not (isinstance(message, Push) and open_envelope(message.envelope, now=None).kind is Kind.INTRODUCTION)
    ]
    return [Send(command.peer, frame, bulk=command.bulk) for frame in frames.join(kept)]


def test_link_counts_with_and_without_introductions() -> None:
    class Silent(Node):
        """A learner that makes no introductions."""

        def commands(self, now: float) -> list[Command]:
            return [part for command in super().commands(now) for part in without_introductions(command)]

    counts = {}
    for build in (Node, Silent):
        made = ProtocolSwarm(VirtualNetwork(5))
        made.add("learner", Role.LEARNER, build=build)
        for index in range(80):
            made.add(f"v{index}", bootstrap=("learner",))
        made.network.run_for(5)
        early = [link_count(made, f"v{index}") for index in range(80)]
        made.network.run_for(55)
        counts[build] = [link_count(made, f"v{index}") for index in range(80)]
        assert statistics.fmean(early) < 18, "six links it opened, and as many that others opened"
        assert min(counts[build]) >= 16
        assert not any(events_of(member, PeerBanned) for member in made.members.values())
    assert 24 <= statistics.fmean(counts[Node]) <= 40, "introduced and random ones"
    assert 16 <= statistics.fmean(counts[Silent]) <= 34


def test_a_restarted_peer_is_introduced_again() -> None:
    made = swarm(seed=6, volunteers=30)
    made.network.run_for(30)
    again = made.members["v3"].peer
    made.network.crash(again)
    made.network.restart(again)
    made.network.connect(again, made.members["learner"].peer)
    made.network.run_for(20)
    assert made.network.node(again)._core.connections.discovery.introduced == frozenset(), "the learner has not noticed"
    made.network.run_for(320)
    assert len(made.network.node(again)._core.connections.discovery.introduced) == 12


def test_forged_introductions_are_faults() -> None:
    made = swarm(volunteers=1)
    made.publish(20_000)
    made.network.run_for(10)
    victim, liar = made.members["v0"], identity_of("liar")
    made.network.inject(liar.peer_id, victim.peer, hello_of(made.run, now=made.network.now))
    for number in range(3):
        message = Introduction(victim.identity.public_key, (liar.public_key,))
        forged = seal(liar, message, run=made.run, now=made.network.now + number / 1000)
        assert not events_of(victim, PeerBanned)
        made.network.inject(liar.peer_id, victim.peer, frames.pack(Push(forged)))
        made.network.run_for(1)
    (ban,) = events_of(victim, PeerBanned)
    assert isinstance(ban, PeerBanned)
    assert "not signed by the run's learner" in ban.reason
