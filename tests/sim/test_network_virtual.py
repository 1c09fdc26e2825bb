"""The virtual network: one trace for each seed, and every kind of fault."""

from __future__ import annotations

import os
import subprocess
import sys

from p2prl.protocol.kinds import Kind, Role
from p2prl.sim.link_conditions import LinkConditions, parse_delay, slow_envelopes
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl_lab.testing.protocol_swarm import ProtocolSwarm

SCENARIO = """
from p2prl.protocol.kinds import Role
from p2prl_lab.testing.protocol_swarm import ProtocolSwarm
from p2prl.sim.link_conditions import LinkConditions
from p2prl.sim.virtual_network import VirtualNetwork

network = VirtualNetwork({seed}, links=LinkConditions(loss=0.02, reorder=0.1))
swarm = ProtocolSwarm(network)
swarm.add("learner", Role.LEARNER)
for index in range(9):
    swarm.add(f"v{{index}}", bootstrap=("learner",))
swarm.add("board", Role.BOARD, bootstrap=("v0",))
network.run_for(5)
for version in range(3):
    swarm.publish(60_000, chunk_bytes=4096)
    for index in range(version, 9):
        swarm.deliver(f"v{{index}}", version)
    network.run_for(8)
    network.crash(swarm.members[f"v{{version}}"].peer)
network.restart(swarm.members["v0"].peer)
network.run_for(20)
print(network.trace, network.loop.steps, network.counters.frames)
"""


def traced(seed: int, hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}
    script = [sys.executable, "-c", SCENARIO.format(seed=seed)]
    return subprocess.run(script, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def test_one_seed_gives_one_trace_with_any_hash_seed() -> None:
    first, second, other = traced(7, "1"), traced(7, "31337"), traced(8, "1")
    assert first == second
    assert first != other
    assert int(first.split()[2]) > 1000, "a swarm that says nothing proves nothing"


def pair(**links: object) -> ProtocolSwarm:
    made = ProtocolSwarm(VirtualNetwork(3, links=LinkConditions(**links)), weight_bytes=30_000)  # type: ignore[arg-type]
    made.add("learner", Role.LEARNER)
    made.add("v0", bootstrap=("learner",))
    return made


def test_bandwidth_bounds_a_transfer() -> None:
    made = ProtocolSwarm(VirtualNetwork(3), weight_bytes=500_000)
    made.add("learner", Role.LEARNER, upload_bytes_s=50_000.0)
    volunteer = made.add("v0", bootstrap=("learner",))
    made.network.run_for(5)
    made.publish(500_000)
    made.network.run_for(60)
    _, _, at = made.published[0]
    assert 10.0 <= volunteer.ready_at[0] - at <= 14.0


def test_partition_and_heal() -> None:
    made = pair()
    made.network.run_for(5)
    learner, volunteer = (made.members[name].peer for name in ("learner", "v0"))
    start = made.network.now
    made.network.partition([[learner], [volunteer]], start, start + 120)
    made.publish(30_000)
    made.network.run_for(119)
    assert not made.members["v0"].ready_at
    assert made.network.node(volunteer).roles() == ()
    made.network.run_for(70)
    assert sorted(made.members["v0"].ready_at) == [0]


def test_queued_frames_die_with_their_machine() -> None:
    made = ProtocolSwarm(VirtualNetwork(4), weight_bytes=400_000)
    made.add("learner", Role.LEARNER, upload_bytes_s=50_000.0)
    volunteer = made.add("v0", bootstrap=("learner",))
    made.network.run_for(5)
    manifest = made.publish(400_000)
    made.network.run_for(4)
    held = len(volunteer.store.begin(manifest.weights))
    assert 0 < held < manifest.weights.total
    made.network.crash(volunteer.peer)
    made.network.run_for(5)
    made.network.restart(volunteer.peer)
    assert len(volunteer.store.begin(manifest.weights)) >= held
    made.network.run_for(30)
    assert sorted(volunteer.ready_at) == [0]
    fetched = made.network.node(volunteer.peer).relay_stats.received_from_source
    assert fetched <= 400_000 - held * manifest.weights.chunk_bytes + manifest.weights.chunk_bytes


def test_delay_distribution_slows_only_groups() -> None:
    slow_groups = slow_envelopes(Kind.ROLLOUT_GROUP, parse_delay("const:300"))
    made = ProtocolSwarm(VirtualNetwork(5, delay=slow_groups), weight_bytes=30_000)
    learner = made.add("learner", Role.LEARNER)
    made.add("v0", bootstrap=("learner",))
    made.network.run_for(5)
    made.deliver("v0", 0)
    made.publish(30_000)
    made.network.run_for(290)
    assert sorted(made.members["v0"].ready_at) == [0]
    assert not learner.arrived()
    made.network.run_for(20)
    assert len(learner.arrived()) == 1


def test_reordering_and_loss_happen_and_counters_count() -> None:
    made = pair(loss=0.3)
    made.network.run_for(60)
    assert made.network.counters.lost > 1
    assert made.network.counters.bytes > made.network.counters.bulk_bytes
    assert made.network.elapsed == 60


def test_a_peer_behind_a_router_dials_and_is_served() -> None:
    made = ProtocolSwarm(VirtualNetwork(6), weight_bytes=30_000)
    made.add("learner", Role.LEARNER)
    hidden = made.add("hidden", dialable=False, bootstrap=("learner",))
    made.network.run_for(5)
    made.publish(30_000)
    made.network.run_for(10)
    assert sorted(hidden.ready_at) == [0]


def test_checks_run_after_every_step() -> None:
    made = pair()
    steps: list[int] = []
    made.network.check_always(lambda: steps.append(made.network.loop.steps))
    before = made.network.loop.steps
    made.network.run_for(5)
    assert steps == list(range(before + 1, made.network.loop.steps + 1))
