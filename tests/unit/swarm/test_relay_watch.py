"""Change of a daemon's relay candidates: only if all of its own have gone for long, and there is somebody else."""

from __future__ import annotations

import pytest

from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.swarm.peers.peer_memory import LinkedRecord
from p2prl.swarm.peers.reachability import LEAST_RUN_S, PATIENCE_S, Reach, RelayWatch
from p2prl.swarm.peers.subnets import UNKNOWN, subnet_of

OWN, OTHER = PeerId("own relay"), PeerId("another")
PUBLIC = "/ip4/44.130.7.1/tcp/4001"
CIRCUIT = f"{PUBLIC}/p2p/{OWN}/p2p-circuit"


def linked(
    peer: PeerId, role: Role = Role.SEEDER, *, address: str = PUBLIC, is_seen_there: bool = True
) -> LinkedRecord:
    observed = subnet_of(address) if is_seen_there else UNKNOWN
    return LinkedRecord(peer, b"", role, (address,), observed, is_chosen=True, since=0.0)


def due_at(
    *records: LinkedRecord,
    reach: Reach = Reach.OUTGOING,
    addresses: tuple[str, ...] = (),
    is_busy: bool = False,
    until: float = 2 * LEAST_RUN_S,
) -> float | None:
    """When it is due first, looking every 10 s."""
    watch, now = RelayWatch([OWN], 0.0), 0.0
    while now <= until:
        if watch.is_due(now, reach=reach, addresses=addresses, linked=records, is_busy=is_busy):
            return now
        now += 10.0
    return None


@pytest.mark.parametrize("reach", [Reach.OUTGOING, Reach.PUNCHED, Reach.RELAYED])
def test_others_are_taken_when_all_have_gone(reach: Reach) -> None:
    assert due_at(linked(OTHER), reach=reach) == LEAST_RUN_S


@pytest.mark.parametrize("reach", [Reach.DIRECT, Reach.MAPPED, Reach.LOCAL, Reach.CUT_OFF])
def test_who_needs_none_or_has_no_network_keeps_its_daemon(reach: Reach) -> None:
    assert due_at(linked(OTHER), reach=reach) is None


def test_nothing_happens_while_there_is_something_left_or_nothing_to_gain() -> None:
    assert due_at(linked(OTHER), addresses=(CIRCUIT,)) is None, "it has a slot"
    assert due_at(linked(OTHER), linked(OWN)) is None, "the daemon asks this one again"
    assert due_at() is None
    assert due_at(linked(OTHER, Role.VOLUNTEER)) is None, "it may leave at any time"
    assert due_at(linked(OTHER, is_seen_there=False)) is None, "an address that nobody has seen it at"
    assert due_at(linked(OTHER, address="/ip4/192.168.1.7/tcp/4001")) is None
    assert due_at(linked(OTHER), is_busy=True) is None, "a download is under way"


def test_a_relay_that_restarts_is_waited_for() -> None:
    watch, late = RelayWatch([OWN], 0.0), 2 * LEAST_RUN_S

    def is_due(now: float, *records: LinkedRecord) -> bool:
        return watch.is_due(now, reach=Reach.OUTGOING, addresses=(), linked=records, is_busy=False)

    assert not is_due(late, linked(OTHER))
    assert not is_due(late + PATIENCE_S - 1.0, linked(OTHER))
    assert not is_due(late + PATIENCE_S - 0.5, linked(OWN), linked(OTHER))
    assert not is_due(late + PATIENCE_S, linked(OTHER)), "the time counts anew"
    assert is_due(late + 2 * PATIENCE_S, linked(OTHER))
