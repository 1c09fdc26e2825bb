"""Neighbor graph: degrees, regions, connectivity."""

from __future__ import annotations

import random

import pytest

from p2prl.swarm.peers.topology import (
    Candidate,
    choose_neighbors,
    introduction_count,
    median_upload,
    region_of,
    target_degree,
)


def test_degree_follows_the_root_of_the_uplink() -> None:
    assert [target_degree(up, 10.0) for up in (0.1, 2.5, 10.0, 40.0, 1e6)] == [12, 12, 24, 48, 64]
    assert target_degree(0.0, 10.0) == target_degree(5.0, 0.0) == 24, "nothing known: the median's"


def test_neighbors_are_distinct_and_two_thirds_near() -> None:
    swarm = {number: Candidate(10.0, number % 4) for number in range(400)}
    rng = random.Random(1)
    for peer in range(0, 400, 37):
        others = choose_neighbors(peer, swarm, rng, count=24)
        assert len(others) == len(set(others)) == 24
        assert peer not in others
        near = sum(swarm[other].region == swarm[peer].region for other in others)
        assert 16 <= near <= 20  # the rest is drawn from all regions, a quarter of it from this one


def test_kept_neighbors_come_first() -> None:
    swarm = {number: Candidate(10.0, number % 4) for number in range(400)}
    kept = [4, 8, 12, 999, 0, 13]  # 999 has left, 0 is the peer itself
    for seed in range(20):
        others = choose_neighbors(0, swarm, random.Random(seed), count=12, kept=kept)
        assert others[:4] == [4, 8, 12, 13]
        assert len(set(others)) == 12
        assert sum(swarm[other].region == 0 for other in others) >= 8, "the kept ones count among the near"
        assert 0 not in others
    assert choose_neighbors(0, swarm, random.Random(1), count=2, kept=kept) == [4, 8]


def test_peers_without_a_region_have_no_near_peers() -> None:
    swarm = {number: Candidate(10.0, None if number < 200 else "here") for number in range(400)}
    rng = random.Random(5)
    hidden = sum(other < 200 for peer in range(0, 200, 10) for other in choose_neighbors(peer, swarm, rng, count=24))
    assert 180 <= hidden <= 300, "240 of 480: like anybody"


def test_introduction_count_is_half_the_degree() -> None:
    assert [introduction_count(up, 10.0) for up in (0.1, 10.0, 1e6)] == [6, 12, 32]
    assert median_upload([Candidate(0.0), Candidate(4.0), Candidate(2.0), Candidate(9.0)]) == 4.0
    assert median_upload([Candidate(0.0)]) == 0.0


@pytest.mark.parametrize(
    ("addresses", "region"),
    [
        (("/ip4/10.0.0.7/tcp/4001", "/ip4/93.184.216.34/tcp/4001"), "93.184.0.0/16"),
        (("/ip6/2606:2800:220:1::1/tcp/1",), "2606:2800::/32"),
        (("/ip4/93.184.216.34/tcp/1/p2p/12D3KooW/p2p-circuit",), None),
        (
            ("/dns4/example.org/tcp/1", "nonsense", "", "/", "/ip4", "/ip4/999.1.1.1/tcp/1", "/ip6/fe80::1%x/tcp/1"),
            None,
        ),
        ((), None),
    ],
)
def test_region_is_the_network_of_a_public_address(addresses: tuple[str, ...], region: str | None) -> None:
    assert region_of(addresses) == region


@pytest.mark.parametrize("size", [1, 2, 5, 20])
def test_small_swarms_are_fully_connected(size: int) -> None:
    swarm = {number: Candidate(0.0) for number in range(size)}
    for peer in swarm:
        assert sorted(choose_neighbors(peer, swarm, random.Random(2), count=24)) == [
            other for other in swarm if other != peer
        ]


def test_the_graph_stays_connected_when_a_third_dies() -> None:
    rng = random.Random(3)
    swarm = {number: Candidate(rng.choice([1.0, 5.0, 50.0]), number % 5) for number in range(500)}
    near: dict[int, set[int]] = {peer: set() for peer in swarm}
    for peer in swarm:
        for other in choose_neighbors(peer, swarm, rng, count=12):
            near[peer].add(other)
            near[other].add(peer)
    alive = set(rng.sample(sorted(swarm), 350))
    reached, frontier = set(), [min(alive)]
    while frontier:
        peer = frontier.pop()
        if peer not in reached:
            reached.add(peer)
            frontier.extend(near[peer] & alive)
    assert reached == alive


def test_many_keys_of_one_subnet_are_few_neighbors() -> None:
    swarm = {number: Candidate(10.0, None, "flood" if number >= 40 else f"home {number}") for number in range(800)}
    drawn = [other for seed in range(10) for other in choose_neighbors(0, swarm, random.Random(seed), count=12)]
    assert len(drawn) == 120
    assert sum(other >= 40 for other in drawn) <= 10
