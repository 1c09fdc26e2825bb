"""Decisions about downloads that wait for chunks: one relay, one neighbor, and versions of four chunks."""

from __future__ import annotations

import random

import pytest

from p2prl.protocol.digests import Digest
from p2prl.protocol.link_messages import Have
from p2prl.protocol.manifests import NO_BASE, BlobRef, PolicyManifest
from p2prl.protocol.policy_head import PatchEdge
from p2prl.swarm.policies.catalog import PolicyVersion
from p2prl.swarm.policies.stalls import Stalls, Step
from p2prl.swarm.policies.version_download import VersionDownload
from p2prl.swarm.relay.chunk_relay import Relay
from p2prl.swarm.relay.chunk_sets import to_bitmap
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from tests.unit.swarm.relays import SOURCE, A, blob

VERSION, CHUNKS = 7, 4
EVERY, ALL_BUT_ONE = (1 << CHUNKS) - 1, (1 << CHUNKS) - 2
EARLY_S, OUT_OF_REACH_S, STALLED_S = 4.9, 5.1, 20.1


def relay_with(*neighbors: str) -> Relay:
    relay = Relay(MemoryBlobs(), random.Random(1), RelayConfig())
    for name in neighbors:
        relay.add_neighbor(A if name == "A" else SOURCE, is_source=name != "A")
    return relay


def downloading(
    relay: Relay, *, by_patch: bool = False, base: int = NO_BASE, stands_in: bool = False, from_local_base: bool = False
) -> tuple[VersionDownload, BlobRef]:
    """A download that began at 0, and the blob that it waits for."""
    _, weights = blob(CHUNKS)
    _, patch = blob(CHUNKS, seed=1)
    manifest = PolicyManifest(VERSION, VERSION, weights, bytes(32), bytes(32), bytes(32), 0)
    download = VersionDownload(PolicyVersion(manifest, b"", Digest(bytes(32))), 0.0, stands_in=stands_in)
    if by_patch:
        download.route, download.patches = (PatchEdge(VERSION, base, patch.size_bytes, bytes(32)),), (patch,)
        download.from_local_base = from_local_base
    awaited = patch if by_patch else weights
    relay.fetch(awaited, 0.0)
    return download, awaited


def announce(relay: Relay, ref: BlobRef, chunks: int) -> None:
    relay.receive(Have(ref.root, to_bitmap(chunks, CHUNKS)), A, 0.0)


def step(relay: Relay, download: VersionDownload, at_s: float, *, newest: int = VERSION, held: int = -1) -> Step:
    return Stalls(relay).step_of_newest(download, at_s, newest=newest, held=held)


@pytest.mark.parametrize(
    ("announced", "at_s", "expected"),
    [
        (ALL_BUT_ONE, EARLY_S, Step.WAIT),
        (ALL_BUT_ONE, OUT_OF_REACH_S, Step.STEP_BACK),
        (EVERY, OUT_OF_REACH_S, Step.WAIT),
        (EVERY, STALLED_S, Step.STEP_BACK),
    ],
)
def test_weights_that_linked_peers_have_are_waited_for_longer(announced: int, at_s: float, expected: Step) -> None:
    relay = relay_with("A")
    download, weights = downloading(relay)
    announce(relay, weights, announced)
    assert step(relay, download, at_s) is expected


def test_the_learner_has_all_of_a_version() -> None:
    relay = relay_with("A", "learner")
    download, _ = downloading(relay)
    assert step(relay, download, OUT_OF_REACH_S) is Step.WAIT


def test_two_peers_may_have_it_together() -> None:
    relay = relay_with("A")
    download, weights = downloading(relay)
    announce(relay, weights, ALL_BUT_ONE)
    relay.add_neighbor(SOURCE, is_source=False)
    relay.receive(Have(weights.root, to_bitmap(1, CHUNKS)), SOURCE, 0.0)
    assert step(relay, download, OUT_OF_REACH_S) is Step.WAIT
    relay.remove_neighbor(SOURCE)
    assert step(relay, download, OUT_OF_REACH_S) is Step.STEP_BACK


def test_time_without_a_linked_peer_is_no_waiting() -> None:
    relay = relay_with()
    download, _ = downloading(relay)
    stalls = Stalls(relay)
    stalls.look(100.0)
    relay.add_neighbor(A, is_source=False)
    stalls.look(102.0)
    assert stalls.step_of_newest(download, 102.0, newest=VERSION, held=-1) is Step.WAIT
    assert stalls.step_of_newest(download, 100.0 + OUT_OF_REACH_S, newest=VERSION, held=-1) is Step.STEP_BACK


@pytest.mark.parametrize(
    ("held", "at_s", "expected"),
    [
        (-1, OUT_OF_REACH_S, Step.FULL_WEIGHTS),
        (VERSION - 2, OUT_OF_REACH_S, Step.STEP_BACK),
        (VERSION - 1, OUT_OF_REACH_S, Step.WAIT),
        (VERSION - 1, STALLED_S, Step.AVOID),
    ],
)
def test_a_patch_that_nobody_has(held: int, at_s: float, expected: Step) -> None:
    """A newcomer takes the full weights; who lags, the version before; who follows, another route, and not so soon."""
    relay = relay_with("A")
    download, _ = downloading(relay, by_patch=True, base=held)
    assert step(relay, download, at_s, held=held) is expected


def test_a_patch_from_a_local_base_is_worth_waiting_for() -> None:
    relay = relay_with("A")
    download, _ = downloading(relay, by_patch=True, base=0, from_local_base=True)
    assert step(relay, download, OUT_OF_REACH_S) is Step.WAIT
    assert step(relay, download, STALLED_S) is Step.AVOID


def test_a_patch_to_a_version_that_stands_in_gives_way_to_another_route() -> None:
    relay = relay_with("A")
    download, _ = downloading(relay, by_patch=True, base=VERSION - 3, stands_in=True)
    assert step(relay, download, OUT_OF_REACH_S, newest=VERSION + 1, held=VERSION - 3) is Step.WAIT
    assert step(relay, download, STALLED_S, newest=VERSION + 1, held=VERSION - 3) is Step.AVOID


@pytest.mark.parametrize(("at_s", "expected"), [(OUT_OF_REACH_S, Step.WAIT), (STALLED_S, Step.GO_ON)])
def test_a_newer_version_takes_the_place_of_a_stalled_one(at_s: float, expected: Step) -> None:
    relay = relay_with("A")
    download, _ = downloading(relay)
    assert step(relay, download, at_s, newest=VERSION + 1) is expected


def test_a_version_that_stands_in_is_followed_by_the_one_before_it() -> None:
    relay = relay_with("A")
    download, _ = downloading(relay, stands_in=True)
    assert step(relay, download, OUT_OF_REACH_S, newest=VERSION + 1) is Step.STEP_BACK
