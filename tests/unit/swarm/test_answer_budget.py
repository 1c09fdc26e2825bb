"""Budget of answers: shares of the upload rate by standing and subnet, and credit of strangers."""

from __future__ import annotations

import pytest

from p2prl.protocol.identity import PeerId
from p2prl.protocol.limits import MAX_AMPLIFICATION
from p2prl.swarm.answer_budget import KNOWN_SHARE, OFFERED_SHARE, PAID_SHARE, AnswerBudget, Asker
from p2prl.swarm.peers.subnets import Subnet

RATE = 100_000.0
LEARNER = PeerId("learner")


def asker(peer: PeerId, now: float) -> Asker:
    """Peers are named `kind/subnet/number`."""
    del now
    kind, _, rest = peer.partition("/")
    return Asker(
        Subnet(rest.partition("/")[0]),
        has_standing=kind in ("known", "learner"),
        is_chosen=kind == "chosen",
        is_learner=kind == "learner",
    )


def budget() -> AnswerBudget:
    return AnswerBudget(asker, RATE)


def drawn(
    made: AnswerBudget, peers: list[str], *, until: float, size: int = 1_000, begin: float = 0.0
) -> dict[str, int]:
    """Bytes that peers get which ask ten times a second and pay for all of it."""
    got = dict.fromkeys(peers, 0)
    for step in range(int((until - begin) * 10)):
        for peer in peers:
            made.received(PeerId(peer), size)
            got[peer] += size * made.take(PeerId(peer), size, begin + step / 10)
    return got


def test_a_stranger_pays_with_its_own_bytes() -> None:
    made, peer = budget(), PeerId("stranger/a/0")
    assert made.room(peer, 0.0) == 0
    made.received(peer, 50)
    assert made.room(peer, 0.0) == 50 * MAX_AMPLIFICATION
    assert not made.take(peer, 50 * MAX_AMPLIFICATION + 1, 0.0)
    assert made.take(peer, 50 * MAX_AMPLIFICATION, 0.0)
    assert not made.take(peer, 1, 1_000.0), "time pays for nothing"


def test_what_the_node_offered_needs_no_credit() -> None:
    assert budget().take(PeerId("stranger/a/0"), 5_000, 0.0, offered=True)


def test_a_new_link_begins_without_credit() -> None:
    made, peer = budget(), PeerId("stranger/a/0")
    made.received(peer, 1_000)
    made.remove_peer(peer)
    assert made.room(peer, 0.0) == 0


def test_all_strangers_together_get_their_share_of_the_rate() -> None:
    peers = [f"stranger/{number}/0" for number in range(64)]
    got = sum(drawn(budget(), peers, until=100.0).values())
    assert 0.9 * 100 * PAID_SHARE * RATE <= got <= 100 * PAID_SHARE * RATE + 1.1 * RATE


def test_peers_of_standing_have_a_share_that_strangers_cannot_use_up() -> None:
    made = budget()
    crowd = [f"stranger/{number}/0" for number in range(64)]
    got = drawn(made, [*crowd, "known/a/0"], until=100.0)
    assert got["known/a/0"] >= 0.9 * min(100 * 10 * 1_000, 100 * KNOWN_SHARE * RATE)


def test_a_chosen_peer_without_standing_pays_for_its_questions_and_not_for_what_it_was_offered() -> None:
    made, crowd = budget(), [f"stranger/{number}/0" for number in range(64)]
    drawn(made, crowd, until=60.0)
    peer = PeerId("chosen/a/0")
    assert made.room(peer, 60.0) == 0
    assert all(made.take(peer, 4_000, 60.0, offered=True) for _ in range(4))
    peers = [f"chosen/{number}/0" for number in range(64)]
    assert sum(drawn(budget(), peers, until=100.0).values()) <= 100 * PAID_SHARE * RATE + 1.1 * RATE


@pytest.mark.parametrize("subnets", [1, 16])
def test_a_crowd_leaves_an_equal_share_to_a_newcomer(subnets: int) -> None:
    made = budget()
    crowd = [f"stranger/crowd{number % subnets}/{number}" for number in range(64)]
    drawn(made, crowd, until=60.0)
    got = drawn(made, [*crowd, "stranger/home/0"], begin=60.0, until=80.0)
    assert got["stranger/home/0"] >= 0.8 * min(20 * 10 * 1_000, 20 * PAID_SHARE * RATE / (subnets + 1))


@pytest.mark.parametrize("subnets", [1, 16])
def test_the_first_question_of_a_newcomer_is_answered_at_once_amid_a_crowd(subnets: int) -> None:
    made = budget()
    crowd = [f"stranger/crowd{number % subnets}/{number}" for number in range(64)]
    drawn(made, crowd, until=60.0)
    assert all(made.take(PeerId(f"stranger/home{number}/0"), 4_000, 60.0, offered=True) for number in range(8))


def test_what_may_wait_leaves_room_for_the_rest() -> None:
    made = budget()
    for peer in (PeerId("stranger/a/0"), PeerId("known/b/0")):
        for tick in range(600):
            while made.take(peer, 100, tick / 10, offered=True, may_wait=True):
                pass
        assert made.take(peer, 4_000, 60.0, offered=True)


def test_an_answer_overdraws_by_no_more_than_itself() -> None:
    made = budget()
    largest = 250_000
    peers = [PeerId(f"stranger/{number}/0") for number in range(8)]
    assert sum(made.take(peer, largest, 0.0, offered=True) for peer in peers) == 1
    settled_s = (largest - RATE) / (OFFERED_SHARE * RATE)
    assert not made.take(peers[1], 1, 0.99 * settled_s, offered=True)
    assert made.take(peers[1], 1, 1.01 * settled_s, offered=True), "its subnet has drawn nothing"


def test_an_hour_of_questions_leaves_no_debt() -> None:
    made = budget()
    drawn(made, [f"stranger/{number}/0" for number in range(16)], until=3_600.0, size=10_000)
    assert made.take(PeerId("stranger/home/0"), 1_000, 3_601.0, offered=True)


def test_the_learner_is_always_answered() -> None:
    made = budget()
    made.is_open = False
    assert all(made.take(PeerId("learner/a/0"), 250_000, 0.0) for _ in range(100))
    assert not made.take(PeerId("stranger/a/0"), 1, 0.0, offered=True), "the month's bytes are used up"
