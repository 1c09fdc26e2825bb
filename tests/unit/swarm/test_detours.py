"""Detours: peers that are linked through circuits are dialed directly."""

from __future__ import annotations

from p2prl.protocol.identity import PeerId
from p2prl.sim.machines import identity_of
from p2prl.swarm.peers.reachability import Detours

LEARNER = identity_of("learner").peer_id
FIRST, SECOND = "/ip4/44.1.1.1/tcp/4001", "/ip6/3000:1::1/tcp/4001"


def dialed(detours: Detours, relayed: dict[PeerId, tuple[str, ...]], until_s: int) -> list[tuple[int, str]]:
    """Seconds and addresses of the dials, looked at every five seconds."""
    return [(at, address) for at in range(0, until_s, 5) for _, address in detours.due(relayed, float(at))]


def test_a_circuit_that_stays_is_replaced_after_ten_seconds_and_each_address_has_its_turn() -> None:
    found = dialed(Detours(), {LEARNER: (FIRST, SECOND)}, 200)
    assert found == [(10, FIRST), (40, SECOND), (70, FIRST), (100, SECOND)]


def test_after_four_attempts_it_is_dialed_every_ten_minutes() -> None:
    found = [at for at, _ in dialed(Detours(), {LEARNER: (FIRST,)}, 2_000)]
    assert found == [10, 40, 70, 100, 700, 1_300, 1_900]


def test_who_has_a_direct_link_is_forgotten() -> None:
    detours = Detours()
    assert detours.due({LEARNER: (FIRST,)}, 0.0) == []
    assert detours.due({LEARNER: (FIRST,)}, 10.0) == [(LEARNER, FIRST)]
    assert detours.due({}, 15.0) == []
    assert detours.due({LEARNER: (FIRST,)}, 100.0) == [], "ten seconds again"
    assert detours.due({LEARNER: (FIRST,)}, 110.0) == [(LEARNER, FIRST)]


def test_who_names_no_public_address_is_left_alone() -> None:
    assert dialed(Detours(), {LEARNER: ()}, 100) == []


def test_many_circuits_are_replaced_a_few_at_a_time_and_nobody_is_left_out() -> None:
    detours = Detours()
    relayed = {identity_of(f"s{number}").peer_id: (f"/ip4/44.{number}.1.1/tcp/1",) for number in range(10)}
    detours.due(relayed, 0.0)
    turns = [detours.due(relayed, at) for at in (10.0, 15.0, 20.0)]
    assert [len(turn) for turn in turns] == [4, 4, 2]
    assert {peer for turn in turns for peer, _ in turn} == set(relayed)
