"""Introductions by the learner: counts, repeats, and the resulting graph."""

from __future__ import annotations

import random
from collections import Counter

from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.topology import Candidate, Introductions

NOW = 1_000.0


def peers(count: int, *, regions: int = 1) -> dict[PeerId, Candidate]:
    return {PeerId(f"p{index}"): Candidate(1e6, index % regions) for index in range(count)}


def drain(
    subject: Introductions, swarm: dict[PeerId, Candidate], now: float
) -> tuple[dict[PeerId, set[PeerId]], float]:
    """Introductions until none is due: the last one of each peer, and the time by then."""
    sent: dict[PeerId, set[PeerId]] = {}
    while True:
        now += 5.0
        due = subject.take_due(swarm, now)
        assert len({peer for peer, _ in due}) == len(due) <= 64
        if not due:
            return sent, now
        for peer, others in due:
            assert len(set(others)) == len(others)
            assert peer not in others
            assert set(others) <= swarm.keys()
            sent[peer] = set(others)


def test_each_peer_is_introduced_to_half_its_degree() -> None:
    subject, swarm = Introductions(random.Random(1), NOW), peers(300, regions=5)
    sent, now = drain(subject, swarm, NOW)
    assert {peer: len(others) for peer, others in sent.items()} == dict.fromkeys(swarm, 12)
    assert subject.take_due(swarm, now + 30) == []
    again, _ = drain(subject, swarm, now + 300)
    assert again == sent, "repeated, but not drawn again"
    degree = Counter[PeerId]()
    for peer, others in sent.items():
        degree[peer] += len(others)
        degree.update(others)
    assert 23.9 < sum(degree.values()) / len(swarm) <= 24
    assert min(degree.values()) >= 14


def test_nothing_is_due_between_periods() -> None:
    subject, swarm = Introductions(random.Random(1), NOW), peers(4)
    assert subject.next_deadline() == NOW + 5
    assert subject.take_due(swarm, NOW + 4.9) == []
    assert len(subject.take_due(swarm, NOW + 5)) == 4
    assert subject.next_deadline() == NOW + 10


def test_lost_introductions_are_replaced_below_three_quarters() -> None:
    subject, swarm = Introductions(random.Random(2), NOW), peers(200)
    sent, now = drain(subject, swarm, NOW)
    peer = PeerId("p0")
    gone = sorted(sent[peer])[:3]
    for name in gone:
        del swarm[name]
    again, now = drain(subject, swarm, now)
    assert peer not in again, "nine of twelve are enough"
    del swarm[sorted(sent[peer])[3]]
    again, _ = drain(subject, swarm, now)
    assert len(again[peer]) == 12
    assert again[peer] > sent[peer] & swarm.keys()


def test_a_growing_swarm_adds_introductions() -> None:
    subject, swarm = Introductions(random.Random(3), NOW), peers(3)
    sent, now = drain(subject, swarm, NOW)
    assert all(others == swarm.keys() - {peer} for peer, others in sent.items())
    swarm |= peers(60)
    again, _ = drain(subject, swarm, now)
    assert {len(others) for others in again.values()} == {12}
    assert again.keys() == swarm.keys()
    assert all(again[peer] > sent[peer] for peer in sent)


def test_a_lone_peer_gets_no_introduction() -> None:
    assert Introductions(random.Random(4), NOW).take_due(peers(1), NOW + 5) == []


def test_a_flood_of_one_subnet_delays_no_introduction() -> None:
    subject = Introductions(random.Random(5), NOW)
    flood = {PeerId(f"flood{index}"): Candidate(1e6, None, "flood") for index in range(500)}
    known = {PeerId(f"known{index}"): Candidate(1e6, None, "flood", is_known=True) for index in range(20)}
    honest = {PeerId(f"home{index}"): Candidate(1e6, None, f"home {index}") for index in range(30)}
    due = [peer for peer, _ in subject.take_due(flood | known | honest, NOW + 5)]
    assert set(due[:20]) == set(known)
    assert set(honest) <= set(due)
