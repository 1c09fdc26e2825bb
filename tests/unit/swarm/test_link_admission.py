"""Places in a full table of links: shares, turns, and floods of keys."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.link_admission import (
    LEAST_STAY_S,
    SHARES,
    TURN_LINKS,
    TURN_S,
    USEFUL_STAY_S,
    WAIT_S,
    WAITING,
    Claim,
    LinkAdmission,
    LinkClass,
    victim_for,
)
from p2prl.swarm.peers.subnets import Subnet

NOW = 1000.0
A, B, C = Subnet("a"), Subnet("b"), Subnet("c")


def newcomer(subnet: Subnet = A, since: float = 0.0, kind: LinkClass = LinkClass.NEWCOMER) -> Claim:
    return Claim(kind, subnet, since)


def table(*groups: tuple[int, Claim]) -> dict[PeerId, Claim]:
    claims = [claim for count, claim in groups for _ in range(count)]
    return {PeerId(f"p{index}"): replace(claim, since=claim.since + index / 1000) for index, claim in enumerate(claims)}


claims = st.builds(
    Claim,
    st.sampled_from(LinkClass),
    st.sampled_from([A, B, C]),
    st.floats(0, NOW),
    st.one_of(st.just(float("-inf")), st.floats(0, NOW)),
)


@given(st.lists(claims, min_size=16, max_size=16), claims)
def test_a_victim_never_outranks_the_shares(linked: list[Claim], asking: Claim) -> None:
    links = {PeerId(f"p{index}"): claim for index, claim in enumerate(linked)}
    victim = victim_for(asking, links, places=16, now=NOW)
    counts = Counter(claim.kind for claim in linked)
    if victim is None:
        under_share = asking.kind in SHARES and counts[asking.kind] < SHARES[asking.kind] * 16 - 1
        assert not (under_share and any(counts[kind] > SHARES[kind] * 16 for kind in SHARES))
        assert asking.kind < LinkClass.CHOSEN or not any(counts[kind] for kind in SHARES)
        return
    lost = links[victim]
    assert lost.kind is not LinkClass.LEARNER
    if lost.kind is LinkClass.CHOSEN:
        assert asking.kind is LinkClass.LEARNER
        assert not any(counts[kind] for kind in SHARES)
    elif lost.kind is not asking.kind and asking.kind < LinkClass.CHOSEN:
        assert counts[asking.kind] < SHARES[asking.kind] * 16
        assert counts[lost.kind] - SHARES[lost.kind] * 16 == max(
            counts[kind] - SHARES[kind] * 16 for kind in SHARES if counts[kind]
        )


def test_classes_keep_their_shares() -> None:
    links = table((8, newcomer()), (8, newcomer(kind=LinkClass.KNOWN)))
    assert victim_for(newcomer(B, kind=LinkClass.VALIDATOR), links, places=16, now=NOW) == "p0"
    crowded = table((4, newcomer()), (10, newcomer(kind=LinkClass.KNOWN)), (2, newcomer(kind=LinkClass.VALIDATOR)))
    assert victim_for(newcomer(A), crowded, places=16, now=NOW) is None, "newcomers have their share"
    fewer = table((3, newcomer()), (11, newcomer(kind=LinkClass.KNOWN)), (2, newcomer(kind=LinkClass.VALIDATOR)))
    assert victim_for(newcomer(A), fewer, places=16, now=NOW) == "p3", "the known give back what is not theirs"
    chosen = table((16, newcomer(kind=LinkClass.CHOSEN)))
    assert victim_for(newcomer(kind=LinkClass.CHOSEN), chosen, places=16, now=NOW) is None
    assert victim_for(newcomer(kind=LinkClass.LEARNER), chosen, places=16, now=NOW) == "p0"


def test_within_a_class_subnets_have_equal_shares() -> None:
    links = table((10, newcomer(A)), (6, newcomer(B)))
    assert victim_for(newcomer(C), links, places=16, now=NOW) == "p0"
    assert victim_for(newcomer(B), links, places=16, now=NOW) == "p0"
    assert victim_for(newcomer(A), links, places=16, now=NOW) is None
    even = table((9, newcomer(A)), (8, newcomer(B)))
    assert victim_for(newcomer(B), even, places=17, now=NOW) is None, "a swap would only turn the difference around"


def test_the_least_useful_goes_first() -> None:
    links = table((16, newcomer(A)))
    links[PeerId("p0")] = replace(links[PeerId("p0")], useful_at=NOW - 299)
    links[PeerId("p1")] = replace(links[PeerId("p1")], useful_at=NOW - 301)
    assert victim_for(newcomer(B), links, places=16, now=NOW) == "p1"


def flooded(keys: int, places: int, seed: int) -> tuple[LinkAdmission, dict[PeerId, Claim]]:
    return LinkAdmission(random.Random(seed), places), table((places, newcomer(A, NOW)), (0, newcomer()))


def test_an_honest_peer_of_the_flooded_subnet_gets_a_turn() -> None:
    """The attackers hold every place and ask again for each one they lose; the honest peer asks every 15 s."""
    honest = PeerId("honest")
    for seed in range(5):
        admission, links = flooded(1024, 1024, seed)
        linked_at, now = None, NOW
        outside: set[PeerId] = set()
        while linked_at is None and now < NOW + 60:
            now += 0.5
            if (now - NOW) % 15 == 0.5:
                assert admission.ask(honest, newcomer(A, now), partial(dict, links), now) == (False, None)
            for peer in sorted(outside):
                admission.ask(peer, newcomer(A, now), partial(dict, links), now)
            for peer, victim in admission.take_turn(links, now):
                assert victim is not None
                assert now - links.pop(victim).since >= LEAST_STAY_S
                links[peer] = newcomer(A, now)
                outside = (outside | {victim}) - {peer}
                linked_at = now if peer == honest else linked_at
        assert linked_at is not None
        assert len(links) == 1024


def test_turns_are_bounded_and_waiting_peers_expire() -> None:
    admission, links = flooded(64, 64, 1)
    for index in range(2 * WAITING):
        admission.ask(PeerId(f"w{index}"), newcomer(A, NOW), lambda: links, NOW)
    assert admission.waiting == WAITING
    assert admission.next_deadline() == NOW + TURN_S
    assert admission.take_turn(links, NOW + 1) == []
    assert admission.take_turn(links, NOW + TURN_S) == [], "nobody has been linked long enough"
    assert len(admission.take_turn(links, NOW + LEAST_STAY_S + 2)) == TURN_LINKS
    assert admission.waiting == WAITING, "those who lost their places wait now"
    for turn in range(1, 100):
        admission.take_turn({}, NOW + WAIT_S + turn * TURN_S)
    assert admission.waiting == 0
    assert admission.next_deadline() == float("inf")


def test_a_crowd_of_one_subnet_does_not_fill_the_waiting_room() -> None:
    admission, links = flooded(64, 64, 2)
    admission.ask(PeerId("other"), newcomer(Subnet("a"), NOW), lambda: links, NOW)
    links = table((32, newcomer(A, NOW)), (32, newcomer(B, NOW)))
    admission.ask(PeerId("lonely"), newcomer(B, NOW), lambda: links, NOW)
    for index in range(4 * WAITING):
        admission.ask(PeerId(f"w{index}"), newcomer(A, NOW), lambda: links, NOW)
    turned = dict(admission.take_turn(links, NOW + LEAST_STAY_S + 2))
    assert "lonely" in turned


def test_useful_peers_keep_their_places_longer() -> None:
    admission = LinkAdmission(random.Random(1), 8)
    links = table((8, Claim(LinkClass.NEWCOMER, A, NOW, NOW)))
    admission.ask(PeerId("w"), newcomer(A, NOW), lambda: links, NOW)
    assert admission.take_turn(links, NOW + LEAST_STAY_S + 3) == []
    assert admission.take_turn(links, NOW + USEFUL_STAY_S - 1) == []
    assert admission.take_turn(links, NOW + USEFUL_STAY_S + 2) == [("w", "p0")]


def test_free_places_go_to_those_who_wait() -> None:
    admission, links = flooded(8, 8, 1)
    admission.ask(PeerId("w"), newcomer(A, NOW), lambda: links, NOW)
    del links[PeerId("p3")]
    assert admission.take_turn(links, NOW + TURN_S) == [("w", None)]
