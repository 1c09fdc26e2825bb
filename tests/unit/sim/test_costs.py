"""Figures of simulated swarms: lost groups and times of spread."""

from __future__ import annotations

import msgspec

from p2prl.protocol.envelope import open_envelope, seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.sim.costs import CostMeter, Tally
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_time import START
from p2prl.swarm.events import EnvelopeArrived, VersionReady
from p2prl_lab.testing.protocol_swarm import group_of

LEARNER, OTHER = identity_of("learner").peer_id, identity_of("other").peer_id
MANIFEST = PolicyManifest(0, 0, blob_of(b"1234", 4096), bytes(32), b"", bytes(32), int(START * 1000))


def ready(version: int) -> VersionReady:
    return VersionReady(msgspec.structs.replace(MANIFEST, version=version), b"", None)  # type: ignore[arg-type]


def test_a_group_is_lost_when_the_learner_has_not_got_it_a_minute_later() -> None:
    tally = Tally(LEARNER)
    raws = [seal(identity_of("v"), group_of(slot), run=bytes(32), now=START) for slot in range(3)]
    for raw in raws:
        tally.sent(raw, START)
    tally.sent(seal(identity_of("v"), MANIFEST, run=bytes(32), now=START), START)  # no group
    tally.sent(raws[0], START + 500)  # again
    assert tally.groups_lost(START + 59.9) == 0
    assert tally.groups_lost(START + 60) == 3
    opened = open_envelope(raws[1], now=None)
    tally.on_event(OTHER, EnvelopeArrived(opened, OTHER), START + 1)
    assert tally.groups_lost(START + 60) == 3, "somebody else has it"
    tally.on_event(LEARNER, EnvelopeArrived(opened, OTHER), START + 1)
    assert tally.groups_lost(START + 60) == 2


def test_the_time_to_95_percent_is_the_median_over_versions_that_got_there() -> None:
    tally = Tally(LEARNER)
    assert tally.t95_s(20) is None
    for version, spread in ((0, 100), (1, 1), (2, 2), (3, 30)):
        for number in range(19):
            tally.on_event(PeerId(f"p{number}"), ready(version), START + spread * (number + 1))
    for number in range(18):
        tally.on_event(PeerId(f"p{number}"), ready(4), START + 1)
    assert tally.t95_s(20) == 2 * 19
    assert tally.t95_s(21) is None, "19 of 21 are too few"
    tally.on_event(PeerId("p0"), ready(1), START + 10_000)  # again, after a restart
    assert tally.t95_s(20) == 2 * 19


def test_processor_time_is_shared_out_after_the_joining() -> None:
    meter = CostMeter()
    sum(range(300_000))
    meter.joined(100.0)
    first = meter.costs(10, 100.0)
    assert first.cpu_s_per_volunteer_hour == 0.0
    assert first.join_cpu_s > 0
    sum(range(300_000))
    costs = meter.costs(10, 100.0 + 360.0)
    assert costs.join_cpu_s == first.join_cpu_s
    assert 0 < costs.cpu_s_per_volunteer_hour < 10
