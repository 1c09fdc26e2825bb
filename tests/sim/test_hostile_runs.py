"""Hostile runs against a node on virtual time: nothing is fetched of what is refused, little is written of the rest."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.config.requirements import requirements_of
from p2prl.net.process import control
from p2prl.net.storage.chain_blobs import WorkerBlobs
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import BlobRef, blob_of
from p2prl.sim.machines import identity_of
from p2prl.sim.simulated_port import SimulatedPort
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl.swarm import signals
from p2prl.swarm.events import Event, PatchesReady, VersionReady
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.testing.hostile_learner import HostileNode, HostileRun
from p2prl_lab.testing.hostile_runs import ATTACKS, NEEDS_MODEL, REFUSED, hostile_run

LEARNER, VICTIM = identity_of("learner"), identity_of("victim")
WEIGHTS = 400_000
LIMIT = 1_000_000


class CountingBlobs(WorkerBlobs):
    """Counts what is written, and the most that is on disk."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.written = 0
        self.most_held = 0
        self._root = directory

    def write(self, ref: BlobRef, index: int, data: bytes, proof: bytes) -> None:
        super().write(ref, index, data, proof)
        self.count(len(data))

    def count(self, size: int) -> None:
        """So much was written, here or by the owner."""
        self.written += size
        self.most_held = max(self.most_held, self.held())

    def held(self) -> int:
        return sum(path.stat().st_size for path in self._root.rglob("*") if path.is_file())


class Victim:
    """A node that meets a hostile learner, and the events it reports."""

    def __init__(self, run: HostileRun, directory: Path, role: Role, *, seed: int = 1, limit: int = LIMIT) -> None:
        self.network = network = VirtualNetwork(seed)
        self.store = CountingBlobs(directory / "blobs")
        self.events: list[Event] = []
        self.manifest = run.manifest
        name = envelope_digest(run.sealed(START)[0])
        config = NodeConfig(role=role, rebuilds=True, awaits_consent=True)
        self.port = SimulatedPort(network, VICTIM.peer_id, (), self.store.path)

        def learner(now: float, rng: object) -> Node:
            node = HostileNode(LEARNER, name, run.store, rng, NodeConfig(role=Role.LEARNER), now)  # type: ignore[arg-type]
            node.play(run, START)
            return node

        network.host(LEARNER.peer_id, name, learner, lambda event: None)
        network.host(
            VICTIM.peer_id,
            name,
            lambda now, rng: Node(VICTIM, name, self.store, rng, config, now),
            self.on_event,
        )
        network.connect(VICTIM.peer_id, LEARNER.peer_id)
        network.run_for(10)
        self.before_consent = self.store.written
        self.port.send(signals.RunAccepted(limit))

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        if isinstance(event, PatchesReady):
            self.store.count(event.manifest.weights.size_bytes)
        self.port.on_event(event)
        self.store.count(0)

    def failure(self) -> control.Failed | None:
        return next((message for message in self.port.poll(0.0) if isinstance(message, control.Failed)), None)

    def ready(self) -> set[int]:
        return {event.manifest.version for event in self.events if isinstance(event, VersionReady)}

    def told(self, role: Role, versions: int) -> int:
        return requirements_of(self.manifest, role).most_written(versions)


def run_of(attack: str) -> HostileRun:
    return hostile_run(attack, LEARNER, weight_bytes=WEIGHTS, now=START)


@pytest.mark.parametrize("role", [Role.VOLUNTEER, Role.SEEDER])
@pytest.mark.parametrize("attack", sorted(ATTACKS.keys() - NEEDS_MODEL))
def test_an_attack_stays_within_what_was_told(attack: str, role: Role, tmp_path: Path) -> None:
    run = run_of(attack)
    victim = Victim(run, tmp_path, role)
    refused_at_once = victim.failure()
    victim.network.run_for(60)
    assert victim.before_consent == 0, "nothing is fetched before its owner has decided"
    failure = refused_at_once or victim.failure()
    versions = max(1, len(run.versions))
    if attack in REFUSED:
        assert failure is not None
        assert failure.error == "RefusedRunError"
        assert failure.remedy
    else:
        assert failure is None
    assert victim.store.written <= victim.told(role, versions)
    assert victim.store.most_held <= LIMIT
    received = victim.network.node(VICTIM.peer_id).relay_stats
    if attack in {"oversized_weights", "largest_weights", "undersized_weights", "oversized_file"}:
        assert received.received_from_source == victim.store.written == 0


def test_honest_weights_arrive_within_the_same_bounds(tmp_path: Path) -> None:
    victim = Victim(run_of("honest"), tmp_path, Role.VOLUNTEER)
    victim.network.run_for(60)
    assert 2 in victim.ready()
    assert victim.store.written <= 3 * WEIGHTS


def test_repeated_chunks_of_the_right_size_are_no_fault(tmp_path: Path) -> None:
    victim = Victim(run_of("repeated_chunks"), tmp_path, Role.VOLUNTEER)
    victim.network.run_for(60)
    assert 2 in victim.ready(), "an honest model may be all zeros"


def test_patches_that_fail_again_and_again_are_soon_left_alone(tmp_path: Path) -> None:
    """Each costs almost its weights twice: without a bound, each version would."""
    run = run_of("patches_that_decode_to_more")
    victim = Victim(run, tmp_path, Role.VOLUNTEER)
    victim.network.run_for(60)
    assert max(victim.ready()) == len(run.versions) - 1, "full weights always work"


@given(
    st.lists(st.sampled_from([WEIGHTS, WEIGHTS - 4, WEIGHTS + 4, 4, 3 * WEIGHTS]), min_size=1, max_size=3),
    st.integers(2 * WEIGHTS, 5 * WEIGHTS),
    st.integers(1, 1_000),
)
@settings(max_examples=12, deadline=None)
def test_written_and_held_are_bounded_for_any_sizes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], limit: int, seed: int
) -> None:
    run = run_of("honest")
    for size in sizes:
        blob = run.serve(bytes(size), blob_of(bytes(size), 4096))
        run.versions.append(msgspec.structs.replace(run.versions[0], weights=blob))
    victim = Victim(run, tmp_path_factory.mktemp("any"), Role.VOLUNTEER, seed=seed, limit=limit)
    victim.network.run_for(20)
    assert victim.store.written <= victim.told(Role.VOLUNTEER, len(run.versions))
    assert victim.store.most_held <= limit
