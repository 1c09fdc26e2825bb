"""Data of a run on the wire: each role downloads its part, from peers too, and no role more than its part."""

from __future__ import annotations

import random

import msgspec

from p2prl.protocol.kinds import Role
from p2prl.protocol.manifests import DataSet, RunFile, RunManifest, TaskShare, blob_of
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm.events import FileReady
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.protocol_swarm import Member, ProtocolSwarm
from tests.sim.node_swarm import events_of

RNG = random.Random(8)
CONFIG, PROMPTS, ANSWERS, CODE = (RNG.randbytes(size) for size in (3_000, 400_000, 300_000, 9_000))
BLOBS = {data: blob_of(data, 16_384) for data in (CONFIG, PROMPTS, ANSWERS, CODE)}


def run_with_data() -> RunManifest:
    """A run with one data task and a researcher's own scorer."""
    bare = run_manifest_of(identity_of("learner"))
    return msgspec.structs.replace(
        bare,
        files=(RunFile("config.json", BLOBS[CONFIG]),),
        tasks=(*bare.tasks, TaskShare("own", 1.0)),
        data_sets=(DataSet("own", 20, BLOBS[PROMPTS], BLOBS[ANSWERS], "{}", BLOBS[CODE]),),
    )


def swarm() -> ProtocolSwarm:
    made = ProtocolSwarm(VirtualNetwork(4), manifest=run_with_data())
    store = MemoryBlobs()
    for data, ref in BLOBS.items():
        store.add(ref, data)
    made.add("learner", Role.LEARNER, store=store)
    return made


def held(member: Member) -> set[bytes]:
    return {data for data, ref in BLOBS.items() if member.store.holds(ref.root)}


def test_data_beyond_the_owners_bound_is_not_downloaded() -> None:
    made = swarm()
    most = len(PROMPTS) + len(CONFIG)
    fits = made.add("fits", bootstrap=("learner",), config=lambda role: NodeConfig(role=role, disk_bytes=most))
    too_large = made.add(
        "too large", bootstrap=("learner",), config=lambda role: NodeConfig(role=role, disk_bytes=most - 1)
    )
    made.network.run_for(60)
    assert held(fits) == {CONFIG, PROMPTS}
    assert held(too_large) == set()


def test_each_role_downloads_its_part() -> None:
    made = swarm()
    volunteer = made.add("volunteer", bootstrap=("learner",))
    seeder = made.add("seeder", Role.SEEDER, bootstrap=("learner",))
    validator = made.add("validator", Role.VALIDATOR, bootstrap=("learner",))
    agreed = made.add(
        "agreed", Role.VALIDATOR, bootstrap=("learner",), config=lambda role: NodeConfig(role=role, runs_code=True)
    )
    made.network.run_for(60)
    assert held(volunteer) == {CONFIG, PROMPTS}
    assert held(validator) == {CONFIG, PROMPTS}, "answers are of no use without the scorer"
    assert held(agreed) == held(seeder) == {CONFIG, PROMPTS, ANSWERS, CODE}
    names = {event.name for event in events_of(agreed, FileReady) if isinstance(event, FileReady)}
    assert names == {"config.json", "prompts/own", "answers/own", "code/own"}
    ready = {event.name: event.root for event in events_of(volunteer, FileReady) if isinstance(event, FileReady)}
    assert ready == {"config.json": BLOBS[CONFIG].root, "prompts/own": BLOBS[PROMPTS].root}
    assert volunteer.store.whole(BLOBS[PROMPTS]) == PROMPTS


def test_a_seeder_serves_data_when_the_learner_is_gone() -> None:
    made = swarm()
    made.add("seeder", Role.SEEDER, bootstrap=("learner",))
    made.network.run_for(60)
    made.network.crash(made.members["learner"].peer)
    late = made.add("late", Role.VALIDATOR, bootstrap=("seeder",), config=lambda r: NodeConfig(role=r, runs_code=True))
    made.network.run_for(60)
    assert held(late) == {CONFIG, PROMPTS, ANSWERS, CODE}
    assert made.network.node(late.peer).relay_stats.received_from_source == 0


def test_volunteers_give_each_other_the_prompts() -> None:
    """The learner has to send each chunk little more than once: others pass it on."""
    made = swarm()
    members = [made.add(f"v{number}", bootstrap=("learner",)) for number in range(6)]
    made.network.run_for(120)
    assert all(held(member) == {CONFIG, PROMPTS} for member in members)
    sent = made.network.node(made.members["learner"].peer).relay_stats.sent
    assert sent < 4 * len(PROMPTS)


def test_progress_counts_bytes() -> None:
    made = swarm()
    volunteer = made.add("volunteer", bootstrap=("learner",), download_bytes_s=50_000.0)
    before = made.network.node(volunteer.peer).file_progress()
    seen = []
    for _ in range(40):
        made.network.run_for(1)
        seen.append(made.network.node(volunteer.peer).file_progress())
    assert before == (0, 0)
    assert seen == sorted(seen)
    assert seen[-1] == (len(CONFIG) + len(PROMPTS),) * 2
    assert any(0 < done < total for done, total in seen)


def test_a_restart_goes_on_with_the_chunks_on_disk() -> None:
    made = swarm()
    volunteer = made.add("volunteer", bootstrap=("learner",), download_bytes_s=50_000.0)
    made.network.run_for(4)
    here = volunteer.store.size_bytes
    assert 0 < here < len(PROMPTS)
    made.network.crash(volunteer.peer)
    made.network.run_for(5)
    made.network.restart(volunteer.peer)
    made.network.connect(volunteer.peer, made.members["learner"].peer)
    made.network.run_for(30)
    assert held(volunteer) == {CONFIG, PROMPTS}
    received = made.network.node(volunteer.peer).relay_stats.received_from_source
    assert received < len(PROMPTS) + len(CONFIG) - here + 4 * 16_384


def test_a_tampered_prompt_is_refused() -> None:
    """A node with other bytes under the prompts' name serves nothing of them."""
    made = swarm()
    lies = MemoryBlobs()
    lies.add(BLOBS[PROMPTS], bytes(len(PROMPTS)))
    made.add("liar", bootstrap=("learner",), store=lies)
    joiner = made.add("joiner", bootstrap=("liar", "learner"))
    made.network.run_for(60)
    assert joiner.store.whole(BLOBS[PROMPTS]) == PROMPTS
    assert FileReady("prompts/own", BLOBS[PROMPTS].root) in events_of(joiner, FileReady)
