"""Looks at a crowd: when all runs were taken, when one was left, and the parts that each got."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from p2prl_lab.crowd_report import (
    CrowdReport,
    Look,
    all_taken_after,
    as_markdown,
    came_back,
    left_after,
    lied_to,
    parts,
    sampled_after,
)

LOOKS = [
    Look(11.0, ("", "", ""), {"a": 2, "b": 4}, {}),
    Look(12.0, ("a", "", "a"), {"a": 2, "b": 4}, {"a": 1}),
    Look(13.0, ("a", "b", "a"), {"a": 2, "b": 4}, {"a": 1, "b": 0}),
    Look(14.0, ("a", "b", "b"), {"a": 2, "b": 4}, {"a": 2, "b": 1}),
    Look(15.0, ("b", "b", "b"), {"a": 2, "b": 4}, {"a": 2, "b": 2}),
]


def test_times_are_those_of_the_first_look_that_shows_it() -> None:
    assert all_taken_after(LOOKS, ["a"], 10.0) == 2.0
    assert all_taken_after(LOOKS, ["a", "b"], 10.0) == 3.0
    assert all_taken_after(LOOKS, ["a", "b", "c"], 10.0) is None
    assert sampled_after(LOOKS, ["a", "b"], 10.0) == 4.0
    assert sampled_after(LOOKS, ["c"], 10.0) is None
    assert left_after(LOOKS, "a", 12.5) == 2.5
    assert left_after(LOOKS, "b", 13.0) is None


def test_a_lie_is_timed_for_each_volunteer_until_it_leaves_and_a_return_is_seen() -> None:
    looks = [
        Look(1.0, ("x", "x", "", "a"), lies=()),
        Look(2.0, ("x", "x", "x", "a"), lies=(0, 1, 0, 0)),
        Look(3.0, ("x", "x", "x", "a"), lies=(2, 8, 1, 0)),
        Look(4.0, ("x", "a", "x", "a"), lies=(8, 8, 2, 0)),
        Look(5.0, ("a", "a", "x", "x"), lies=(8, 8, 3, 0)),
    ]
    assert lied_to(looks, "x") == {0: 2.0, 1: 2.0, 2: None}
    assert came_back(looks, "x") == []
    assert came_back([*looks, Look(6.0, ("x", "a", "a", "x"), lies=(8, 8, 3, 0))], "x") == [0]
    assert lied_to(LOOKS, "a") == {}


def test_parts_are_of_the_time_served_and_of_the_wants() -> None:
    found = parts(LOOKS, ["a", "b"])
    assert list(found["a"]) == pytest.approx([5 / 11, 2 / 6])
    assert list(found["b"]) == pytest.approx([6 / 11, 4 / 6])
    assert parts([], ["a"]) == {"a": (0.0, 0.0)}


def test_a_report_holds_within_its_promises_alone() -> None:
    good = CrowdReport(
        taken_s=120.0,
        sampled_s=150.0,
        parts={"a": (0.5, 0.4)},
        left_s={"a": 60.0},
        lied_to_s=[12.0, 60.0],
        lies=20,
        came_back=0,
        states={"verified": 1_234},
        returned=2,
        lost=[],
        load=2.0,
    )
    assert good.holds
    assert "| `a`: part of the volunteers' time, of the wants | 50%, 40% |" in as_markdown(good)
    changes: list[dict[str, Any]] = [
        {"taken_s": 121.0},
        {"taken_s": None},
        {"left_s": {"a": 61.0}},
        {"left_s": {"a": None}},
        {"lied_to_s": []},
        {"lied_to_s": [12.0, 61.0]},
        {"lied_to_s": [None]},
        {"came_back": 1},
        {"lost": ["x"]},
    ]
    for change in changes:
        assert not replace(good, **change).holds
