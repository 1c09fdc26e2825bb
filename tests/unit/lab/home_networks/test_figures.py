"""Figures come from the packets: who talked with whom, and where a home's bytes came from."""

from __future__ import annotations

from typing import Any

from p2prl_lab.home_networks.figures import (
    claimed_share,
    home_shares,
    home_to_home_bytes,
    learner_copies,
    pair_rows,
    slowest,
    talked_since,
)

KINDS = {"learner": "public", "public-1": "public", "a": "preserving", "b": "symmetric", "c": "carrier"}


def row(sender: str, receiver: str, delivered: int, talked_at: float | None = None) -> dict[str, Any]:
    return {
        "sender": sender,
        "receiver": receiver,
        "sent_bytes": delivered + 10,
        "delivered_bytes": delivered,
        "talked_at": talked_at,
    }


ROWS = [
    row("learner", "a", 500, 3.0),
    row("a", "learner", 50, 4.0),
    row("public-1", "b", 300, 5.0),
    row("a", "c", 100, 7.0),
    row("c", "a", 100, 6.0),
    row("a", "b", 0),
    row("b", "a", 0, 9.0),
    row("learner", "public-1", 9_000, 1.0),
]


def test_a_conversation_needs_both_directions() -> None:
    assert talked_since(ROWS) == {frozenset(("learner", "a")): 4.0, frozenset(("a", "c")): 7.0}


def test_shares_of_the_homes_alone() -> None:
    shares = home_shares(ROWS, KINDS, "learner")
    assert shares.total_bytes == 1_000
    assert (shares.learner, shares.public, shares.homes) == (0.5, 0.3, 0.2)
    assert home_shares([], KINDS, "learner").learner == 0.0


def test_each_pair_of_homes_has_a_row() -> None:
    rows = pair_rows(KINDS, {"a": 2.0, "b": 1.0, "c": 2.5}, talked_since(ROWS))
    assert [(r["a"], r["b"], r["kind_b"], r["direct"], r["after_s"]) for r in rows] == [
        ("a", "b", "symmetric", False, None),
        ("a", "c", "carrier", True, 4.5),
        ("b", "c", "carrier", False, None),
    ]


def test_copies_are_the_learners_egress_over_what_one_needs() -> None:
    assert learner_copies(ROWS, "learner", 952) == 10.0
    assert learner_copies(ROWS, "learner", 0) is None


def test_bytes_from_other_homes_by_home() -> None:
    assert home_to_home_bytes(ROWS, KINDS, "learner") == {"a": 100, "b": 0, "c": 100}
    at_home = home_to_home_bytes(ROWS, KINDS, "a")  # a learner at home is no other home
    assert at_home == {"b": 0, "c": 0}


def test_what_homes_claim_and_the_slowest_of_them() -> None:
    told = {"weight_bytes_received": 30, "weight_bytes_from_learner": 10}
    assert claimed_share([told, told, {}]) == 0.3333
    assert claimed_share([]) is claimed_share([{}]) is None
    assert slowest({"a": 2.0, "b": 3.0}) == 3.0
    assert slowest({"a": 2.0, "b": None}) is None
    assert slowest({}) == 0.0
