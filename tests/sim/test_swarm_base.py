"""Newcomers with a local base: the run's own model saves bytes, another one costs none."""

from __future__ import annotations

import pytest
from blake3 import blake3

from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.kinds import Role
from p2prl.sim.link_conditions import LinkConditions
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm import signals
from p2prl.swarm.events import BaseReleased, Event, PatchesReady, VersionReady
from p2prl.swarm.node_config import NodeConfig
from p2prl_lab.testing.patched_swarm import PatchedSwarm
from p2prl_lab.testing.protocol_swarm import Member

FULL = 40_000
"""Bytes of a version's weights."""


def config(role: Role) -> NodeConfig:
    keep = 64 if role is Role.LEARNER else 4
    return NodeConfig(role=role, rebuilds=role is Role.VOLUNTEER, keep_versions=keep)


def config_with_base(role: Role) -> NodeConfig:
    return NodeConfig(role=role, rebuilds=True, awaits_base=True)


class SlowSwarm(PatchedSwarm):
    """A rebuild from the run's starting weights, completed by the test."""

    def on_event(self, member: Member, event: Event) -> None:
        if isinstance(event, PatchesReady) and event.base == blake3(self.versions[0].tobytes()).digest():
            member.events.append(event)
        else:
            super().on_event(member, event)

    def fail(self, member: Member, version: int) -> None:
        """Report that a version could not be rebuilt."""
        self.network.node(member.peer).order(
            signals.VersionRebuilt(envelope_digest(self.published[version][0]), ok=False), self.network.now
        )
        self.network.wake(member.peer)


def swarm(
    versions: int, *, bridge_at: int = 0, seed: int = 1, build: type[PatchedSwarm] = PatchedSwarm
) -> PatchedSwarm:
    """A run with two volunteers and `versions` published, one of them with a patch from version 0."""
    made = build(VirtualNetwork(seed))
    made.add("learner", Role.LEARNER, config=config)
    for name in ("v0", "v1"):
        made.add(name, bootstrap=("learner",), config=config)
    for version in range(versions):
        made.advance(bridge=0 < version == bridge_at)
        made.network.run_for(20.0)
    return made


def newcomer(made: PatchedSwarm, name: str, base: bytes | None) -> Member:
    """A volunteer joins with a base, or reports that it has none."""
    made.bases[name] = base
    member = made.add(name, bootstrap=("learner", "v0"), config=config_with_base)
    made.network.run_for(60.0)
    return member


def downloaded(made: PatchedSwarm, member: Member) -> int:
    stats = made.network.node(member.peer).relay_stats
    return stats.received_from_source + stats.received_from_peers


def released(member: Member) -> list[BaseReleased]:
    return [event for event in member.events if isinstance(event, BaseReleased)]


def starts(member: Member) -> list[bytes | None]:
    return [event.base for event in member.events if isinstance(event, PatchesReady)]


def test_base_and_two_patches_replace_full_weights() -> None:
    made = swarm(10, bridge_at=8)
    base = made.versions[0].tobytes()
    plain, with_base = newcomer(made, "plain", None), newcomer(made, "with_base", base)
    bridge = made.published[8][1].patch_from(0)
    short = made.published[9][1].patch_from(8)
    assert bridge is not None
    assert short is not None
    patch_bytes = bridge.blob.size_bytes + short.blob.size_bytes
    assert made.words_of(with_base, 9) == made.words_of(plain, 9) == made.versions[9].tobytes()
    assert downloaded(made, plain) == FULL
    assert downloaded(made, with_base) == patch_bytes < FULL / 2
    stats = made.network.node(with_base.peer).download_stats
    assert (stats.patch_bytes, stats.full_bytes, stats.version_bytes, stats.saved_bytes) == (
        patch_bytes,
        0,
        FULL,
        FULL - patch_bytes,
    )
    state = Digest(blake3(base).digest())
    assert released(with_base) == [BaseReleased(state, True, 9, patch_bytes, FULL - patch_bytes)]
    assert starts(with_base) == [state]
    assert released(plain) == []
    made.advance()
    made.network.run_for(20.0)
    assert made.words_of(with_base, 10) == made.versions[10].tobytes()
    assert starts(with_base)[1] == made.published[9][1].weights.root, "from then on like any other peer"
    assert len(released(with_base)) == 1


@pytest.mark.parametrize("bridge_at", [0, 8])
def test_a_wrong_base_costs_no_download(bridge_at: int) -> None:
    made = swarm(9, bridge_at=bridge_at)
    wrong = bytearray(made.versions[0].tobytes())
    wrong[1234] ^= 1
    member = newcomer(made, "wrong", bytes(wrong))
    assert made.words_of(member, 8) == made.versions[8].tobytes()
    assert downloaded(made, member) == FULL
    assert blake3(wrong).digest() not in starts(member)
    (release,) = released(member)
    assert (release.matches_run, release.version, release.saved_bytes) == (False, None, 0)


def test_a_base_equal_to_the_newest_version_costs_nothing() -> None:
    made = swarm(1)
    member = newcomer(made, "early", made.versions[0].tobytes())
    assert made.words_of(member, 0) == made.versions[0].tobytes()
    assert downloaded(made, member) == 0
    assert released(member) == [BaseReleased(Digest(blake3(made.versions[0].tobytes()).digest()), True, 0, 0, FULL)]
    made.network.crash(made.members["learner"].peer)
    late = newcomer(made, "late", None)
    assert made.words_of(late, 0) == made.versions[0].tobytes(), "and is served to others"


def test_weights_of_a_later_version_are_a_base() -> None:
    made = swarm(6)
    member = newcomer(made, "informed", made.versions[4].tobytes())
    patch = made.published[5][1].patch_from(4)
    assert patch is not None
    assert made.words_of(member, 5) == made.versions[5].tobytes()
    assert downloaded(made, member) == patch.blob.size_bytes


def test_a_base_changed_on_disk_is_abandoned() -> None:
    made = swarm(9, bridge_at=8)
    member = made.add("damaged", bootstrap=("learner", "v0"), config=config_with_base)
    made.network.run_for(10.0)
    named, corrupt = made.versions[0].tobytes(), made.versions[0].copy()
    corrupt[7] ^= 1
    made.offer_base(member, named)
    member.store.lay(Digest(blake3(named).digest()), corrupt.tobytes())
    made.network.run_for(60.0)
    assert made.words_of(member, 8) == made.versions[8].tobytes()
    assert made.refused == [("damaged", 8)]
    (release,) = released(member)
    assert (release.version, release.saved_bytes) == (None, 0)


def test_base_is_released_after_both_rebuilds_failed() -> None:
    made = swarm(18, bridge_at=16, build=SlowSwarm)
    assert isinstance(made, SlowSwarm)
    member = made.add("twice", bootstrap=("learner", "v0"), config=config_with_base)
    made.network.run_for(10.0)
    wanted = signals.FetchPolicy(envelope_digest(made.published[16][0]))
    made.network.node(member.peer).order(wanted, made.network.now)
    base = made.versions[0].tobytes()
    made.offer_base(member, base)
    made.network.run_for(30.0)
    assert starts(member) == [blake3(base).digest()] * 2
    made.fail(member, 16)
    made.network.run_for(30.0)
    assert made.words_of(member, 16) == made.versions[16].tobytes(), "whole"
    assert released(member) == [], "the other rebuild still reads it"
    made.fail(member, 17)
    made.network.run_for(30.0)
    (release,) = released(member)
    assert (release.matches_run, release.version, release.saved_bytes) == (None, None, 0)
    assert made.words_of(member, 17) == made.versions[17].tobytes()
    assert starts(member)[2:] == [made.published[16][1].weights.root], "the route's second patch has not failed"
    assert made.network.node(member.peer).download_stats.full_bytes == FULL


def test_downloads_wait_for_the_owners_base() -> None:
    made = swarm(9, bridge_at=8)
    member = made.add("slow", bootstrap=("learner", "v0"), config=config_with_base)
    made.network.run_for(60.0)
    assert downloaded(made, member) == 0
    assert not any(isinstance(event, VersionReady) for event in member.events)
    made.offer_base(member, made.versions[0].tobytes())
    made.network.run_for(30.0)
    assert made.words_of(member, 8) == made.versions[8].tobytes()
    assert 0 < downloaded(made, member) < FULL


@pytest.mark.parametrize("seed", range(4))
def test_newcomers_with_bases_under_loss_and_a_crash(seed: int) -> None:
    made = PatchedSwarm(VirtualNetwork(seed, links=LinkConditions(loss=0.1)))
    made.add("learner", Role.LEARNER, config=config)
    for name in ("v0", "v1"):
        made.add(name, bootstrap=("learner",), config=config)
    for version in range(9):
        made.advance(bridge=version == 8)
        made.network.run_for(40.0)
    bases = {"right": made.versions[0], "later": made.versions[7], "wrong": made.versions[0] ^ 1, "none": None}
    joined = {}
    for name, words in bases.items():
        made.bases[name] = None if words is None else words.tobytes()
        joined[name] = made.add(name, bootstrap=("learner", "v0", "v1"), config=config_with_base)
    made.network.run_for(0.3 + 0.4 * seed)
    made.network.crash(made.members["learner"].peer)
    made.network.run_for(240.0)
    for name, member in joined.items():
        assert made.words_of(member, 8) == made.versions[8].tobytes(), name
        assert len(released(member)) == (name != "none"), name
        saved = sum(event.saved_bytes for event in released(member))
        assert saved == made.network.node(member.peer).download_stats.saved_bytes
        assert saved == 0 or name in ("right", "later")
    assert made.refused == []
