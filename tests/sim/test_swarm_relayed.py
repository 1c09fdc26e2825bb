"""Volunteers that reach the learner over one seeder alone: groups arrive, receipts come back, and nothing is lost while
the seeder restarts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from p2prl.client.service import VolunteerConfig
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.net.storage.chain_blobs import WorkerBlobs
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState, StorageReceipt
from p2prl.protocol.peer_messages import Standby
from p2prl.scoreboard.ledger.mirror import MirroringPort
from p2prl.sim import simulated_run
from p2prl.sim.machines import identity_of
from p2prl.sim.swarm import Swarm
from p2prl.sim.swarm_config import SwarmConfig
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl.swarm.gossip.forwarding import GossipConfig
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.testing.protocol_swarm import Member, ProtocolSwarm, group_of
from p2prl_lab.testing.swarm_processes import rows

CONFIG = SwarmConfig(volunteers=3, updates=1_000, step_seconds=10.0, sample_seconds=5.0, seed=5)

_REDIAL_S = 5.0
"""Time until a peer dials a seeder again that it has lost."""


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(simulated_run, "_EVALUATION_PROMPTS", 8)  # no test here asks for the reward
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class RelayedSwarm(Swarm):
    """A swarm in which no frame passes between volunteers, nor between one and the learner: all of it goes over one
    seeder, which mirrors the ledger, as seeders do."""

    def _schedule_faults(self) -> None:
        """Cut the others off from each other, and start the seeder."""
        alone = [[self.simulated.key.peer_id], *([peer] for peer in self._volunteers)]
        self.network.partition(alone, START, math.inf)
        identity, folder = identity_of("seeder"), self._directory / "seeder"
        port = self._host(identity, Role.SEEDER, WorkerBlobs(folder / "blobs"), keep_versions=4)
        self.seeder = port.peer
        run, clock = self.simulated.run, self.network.clock(port.peer)
        mirror = MirroringPort(port, folder / "ledger.db", run=run, clock=clock)
        mirror.begin(1_000_000)
        self._turns(port, partial(self._poll, mirror))
        self._dial_seeder()

    @staticmethod
    def _poll(mirror: MirroringPort) -> float:
        mirror.poll(0.0)
        return 0.5

    def _volunteer_config(self, number: int) -> VolunteerConfig:
        """As over sockets: what has no storage receipt is offered again."""
        return VolunteerConfig(agent=super()._volunteer_config(number).agent)

    def restart_seeder(self, away_s: float) -> None:
        """Power the seeder off, and on again `away_s` later."""
        self.network.crash(self.seeder)
        self.network.run_for(away_s)
        self.network.restart(self.seeder)
        self.network.after(_REDIAL_S, self._dial_seeder)

    def _dial_seeder(self) -> None:
        for peer in (self.simulated.key.peer_id, *self._volunteers):
            self.network.connect(peer, self.seeder)

    def sampled(self) -> dict[bytes, str]:
        """State of every group by the spools, by digest."""
        found: dict[bytes, str] = {}
        for number in range(CONFIG.volunteers):
            spool = self._directory / f"volunteer-{number}" / "spool.db"
            found |= dict(rows(spool, "SELECT digest, state FROM groups"))
        return found

    def judged(self) -> dict[bytes, str]:
        """State of every group by the learner's journal."""
        return dict(rows(self._directory / "learner" / "journal.db", "SELECT digest, state FROM groups"))


def test_receipts_and_standbys_reach_a_volunteer_behind_a_seeder() -> None:
    network = VirtualNetwork(3)
    swarm = ProtocolSwarm(network)
    learner = swarm.add("learner", Role.LEARNER)
    swarm.add("seeder", Role.SEEDER, bootstrap=("learner",))
    network.partition(([learner.peer], [identity_of("home").peer_id]), START, math.inf)
    volunteer = swarm.add("home", bootstrap=("seeder",))
    network.run_for(30.0)
    assert dict(network.node(volunteer.peer).roles()) == {"seeder": 1}
    group = swarm.deliver("home", 7)
    network.run_for(10.0)
    assert group in {event.opened.digest for event in learner.arrived()}
    receipts = Receipts(1, (Receipt(group, volunteer.identity.public_key, 0, 7, ReceiptState.VERIFIED, "", 4, 4, 0.5),))
    swarm.say(receipts)
    standby = Standby((volunteer.identity.public_key,), until_ms=int((network.now + 300.0) * 1000))
    swarm.say(standby)
    network.run_for(10.0)
    heard = [event.opened.body for event in volunteer.arrived()]
    assert StorageReceipt((group,)) in heard
    assert receipts in heard
    assert standby in heard


class ReluctantSwarm(ProtocolSwarm):
    """Its learner stores a group when it comes for the second time: before, it has no room."""

    def _acknowledge(self, member: Member, group: Digest) -> None:
        if [event.opened.digest for event in member.arrived()].count(group) > 1:
            super()._acknowledge(member, group)


@pytest.mark.parametrize("store_bytes", [GossipConfig().store_bytes, 1_000])
def test_a_group_that_was_turned_away_reaches_the_learner_again_over_a_seeder(store_bytes: int) -> None:
    network = VirtualNetwork(3)
    swarm = ReluctantSwarm(network)
    learner = swarm.add("learner", Role.LEARNER).peer
    gossip = GossipConfig(store_bytes=store_bytes)
    swarm.add("seeder", Role.SEEDER, bootstrap=("learner",), config=lambda role: NodeConfig(role=role, gossip=gossip))
    network.partition(([learner], [identity_of("home").peer_id]), START, math.inf)
    home = swarm.add("home", bootstrap=("seeder",))
    network.run_for(30.0)
    raw = seal(home.identity, group_of(7), run=swarm.run, now=network.now)
    for _ in range(2):
        network.node(home.peer).publish(raw, network.now)
        network.wake(home.peer)
        network.run_for(10.0)
        swarm.deliver("home", 8)  # of two, the small store has room for one
        network.run_for(10.0)
    heard = [event.opened.body for event in home.arrived()]
    assert StorageReceipt((envelope_digest(raw),)) in heard


def test_no_group_is_lost_or_voided_while_the_only_relay_restarts(tmp_path: Path) -> None:
    swarm = RelayedSwarm(CONFIG, tiny_model("chain4", seed=1), tmp_path)
    for _ in range(2):
        swarm.network.run_for(40.0)
        before = set(swarm.sampled())
        swarm.restart_seeder(20.0)
        assert len(set(swarm.sampled()) - before) > 10, "they sample on without it"
    sampled = set(swarm.sampled())
    swarm.network.run_for(90.0)
    judged, states = swarm.judged(), swarm.sampled()
    assert sampled <= set(judged), "some never arrived"
    assert {judged[each] for each in sampled} <= {"verified", "used", "unused"}
    assert "rejected" not in judged.values()
    assert {states[each] for each in sampled} == {"verified"}
