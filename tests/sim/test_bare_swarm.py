"""Swarms of nodes without models: reproducible, complete after faults, and honest about what is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p2prl.protocol import envelope
from p2prl.protocol.manifests import blob_of
from p2prl.sim.bare_swarm import BareSwarm
from p2prl.sim.pooled_blobs import BlobPool, PooledBlobs
from p2prl.sim.swarm_config import SwarmConfig, SwarmResult

CONFIG = SwarmConfig(volunteers=14, updates=3, step_seconds=20.0, groups_per_update=8, seed=5)


def simulate(config: SwarmConfig) -> SwarmResult:
    shares: list[float] = []
    result = BareSwarm(config).run(on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    return result


@pytest.fixture(scope="module")
def calm() -> SwarmResult:
    """The run of `CONFIG`."""
    return simulate(CONFIG)


def test_the_trace_depends_on_the_seed_alone(calm: SwarmResult) -> None:
    kept_bytes = envelope.OPENINGS.limit_bytes
    assert simulate(CONFIG) == calm
    assert simulate(replace(CONFIG, seed=6)).trace_hash != calm.trace_hash
    assert envelope.OPENINGS.limit_bytes == kept_bytes


def test_everybody_has_every_version_and_no_group_is_lost(calm: SwarmResult) -> None:
    assert calm.caught_up_s == 10.0
    assert calm.whole_bytes == calm.brought_bytes == 4 * 14 * 128 * 1024, "version 0 and three updates"
    assert calm.groups_lost == 0
    assert calm.t95_s is not None
    assert 0.1 < calm.t95_s < 10
    assert calm.source_copies is not None
    assert 1 <= calm.source_copies < 5
    assert 8 <= calm.links <= 14
    assert calm.costs.cpu_s_per_volunteer_hour > 0
    assert calm.costs.join_cpu_s > 0
    assert calm.costs.peak_bytes > 10_000_000


def test_a_lossy_swarm_with_crashes_catches_up() -> None:
    result = simulate(replace(CONFIG, updates=6, loss=0.05, crashes=3))
    assert result.caught_up_s >= 0
    assert result.groups_lost <= 3, "those that crashed volunteers made keep until they are back"


def test_groups_of_a_half_that_never_reaches_the_learner_are_lost() -> None:
    result = simulate(replace(CONFIG, updates=6, partition=(5.0, 10_000.0)))
    assert 8 <= result.groups_lost <= 32, "about half of the 40 that were sent a minute before the end"
    assert result.t95_s is None
    assert result.caught_up_s == -1.0


def test_a_peer_holds_what_it_has_written_of_the_shared_bytes() -> None:
    data = bytes(range(256)) * 512
    ref, pool = blob_of(data, 65_536), BlobPool()
    pool.add(ref, data)
    author, peer = PooledBlobs(pool), PooledBlobs(pool)
    author.hold(ref)
    assert author.begin(ref) == {0, 1}
    assert peer.begin(ref) == set()
    chunk, proof = author.read(ref, 1), author.proof(ref, 1)
    assert ref.proves(1, chunk, proof)
    assert chunk == data[65_536:]
    peer.write(ref, 1, chunk, proof)
    assert peer.begin(ref) == {1}
    peer.drop(ref.root)
    assert peer.begin(ref) == set()
    assert author.begin(ref) == {0, 1}
