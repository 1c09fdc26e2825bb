"""The learner's introductions: who is named to whom, how often, and what graph comes of it."""

from __future__ import annotations

import random
from collections import Counter

from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.introductions import Introductions
from p2prl.swarm.peers.topology import Candidate

NOW = 1_000.0


def peers(count: int, *, regions: int = 1) -> dict[PeerId, Candidate]:
    return {PeerId(f"p{index}"): Candidate(1e6, index % regions) for index in range(count)}


def settled(
    subject: Introductions, swarm: dict[PeerId, Candidate], now: float
) -> tuple[dict[PeerId, set[PeerId]], float]:
    """Everything handed out until nothing is due, the last word to each peer, and the time by then."""
    said: dict[PeerId, set[PeerId]] = {}
    while True:
        now += 5.0
        due = subject.take_due(swarm, now)
        assert len({peer for peer, _ in due}) == len(due) <= 64
        if not due:
            return said, now
        for peer, named in due:
            assert len(set(named)) == len(named)
            assert peer not in named
            assert set(named) <= swarm.keys()
            said[peer] = set(named)


def test_everybody_is_introduced_to_half_its_neighbours_once() -> None:
    subject, swarm = Introductions(random.Random(1), NOW), peers(300, regions=5)
    said, now = settled(subject, swarm, NOW)
    assert {peer: len(named) for peer, named in said.items()} == dict.fromkeys(swarm, 12)
    assert subject.take_due(swarm, now + 30) == []
    again, _ = settled(subject, swarm, now + 300)
    assert again == said, "said again, but not drawn again"
    degree = Counter[PeerId]()
    for peer, named in said.items():
        degree[peer] += len(named)
        degree.update(named)
    assert 23.9 < sum(degree.values()) / len(swarm) <= 24
    assert min(degree.values()) >= 14


def test_nothing_is_drawn_between_periods() -> None:
    subject, swarm = Introductions(random.Random(1), NOW), peers(4)
    assert subject.next_deadline() == NOW + 5
    assert subject.take_due(swarm, NOW + 4.9) == []
    assert len(subject.take_due(swarm, NOW + 5)) == 4
    assert subject.next_deadline() == NOW + 10


def test_who_has_lost_a_quarter_of_its_names_is_given_others_and_keeps_the_rest() -> None:
    subject, swarm = Introductions(random.Random(2), NOW), peers(200)
    said, now = settled(subject, swarm, NOW)
    peer = PeerId("p0")
    gone = sorted(said[peer])[:3]
    for name in gone:
        del swarm[name]
    again, now = settled(subject, swarm, now)
    assert peer not in again, "nine of twelve are enough"
    del swarm[sorted(said[peer])[3]]
    again, _ = settled(subject, swarm, now)
    assert len(again[peer]) == 12
    assert again[peer] > said[peer] & swarm.keys()


def test_a_swarm_that_grows_names_more_to_those_who_were_first() -> None:
    subject, swarm = Introductions(random.Random(3), NOW), peers(3)
    said, now = settled(subject, swarm, NOW)
    assert all(named == swarm.keys() - {peer} for peer, named in said.items())
    swarm |= peers(60)
    again, _ = settled(subject, swarm, now)
    assert {len(named) for named in again.values()} == {12}
    assert again.keys() == swarm.keys()
    assert all(again[peer] > said[peer] for peer in said)


def test_one_peer_alone_is_told_nothing() -> None:
    assert Introductions(random.Random(4), NOW).take_due(peers(1), NOW + 5) == []
