"""Bounds on a board's connections: who makes room for whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.scoreboard.web.events import MAX_STREAMS
from p2prl.scoreboard.web.visitor_limits import LOOPBACK, Visitor, VisitorLimits, displaced, subnet_of_client
from p2prl.swarm.peers.subnets import Subnet

A, B, C = (Subnet(f"192.0.{place}.0/24") for place in range(3))
LIMITS = VisitorLimits(connections=6, per_subnet=3)


def held(*visitors: tuple[Subnet, float | None]) -> list[Visitor]:
    return [Visitor(subnet, since) for subnet, since in visitors]


def test_while_there_is_room_nobody_makes_any() -> None:
    assert displaced([], A, LIMITS) == -1
    assert displaced(held((A, 1.0), (A, 1.0), (B, 1.0), (B, 1.0), (C, 1.0)), A, LIMITS) == -1


def test_a_full_subnet_makes_room_among_its_own() -> None:
    assert displaced(held((B, 0.0), (A, 2.0), (A, 1.0), (A, None)), A, LIMITS) == 2
    assert displaced(held((B, 0.0), (A, 2.0), (A, 1.0), (A, None)), B, LIMITS) == -1
    assert displaced(held((B, 0.0), (A, None), (A, None), (A, None)), A, LIMITS) is None


def test_a_full_board_makes_room_in_the_subnets_that_wait_most() -> None:
    full = held((B, 0.0), (A, 3.0), (A, 2.0), (B, None), (B, None), (C, 1.0))
    assert displaced(full, C, LIMITS) == 2, "the oldest of A, which has two waiting"
    assert displaced(held(*[(A, None)] * 3, *[(B, None)] * 3), C, LIMITS) is None, "all are being answered"


def test_a_proxy_on_this_machine_brings_many_visitors() -> None:
    assert displaced(held(*[(LOOPBACK, 1.0)] * 5), LOOPBACK, LIMITS) == -1
    assert displaced(held((LOOPBACK, 2.0), *[(LOOPBACK, None)] * 5), LOOPBACK, LIMITS) == 0


@given(st.lists(st.tuples(st.sampled_from([A, B, C, LOOPBACK]), st.none() | st.floats(0, 9)), max_size=6), st.data())
def test_nobody_who_is_being_answered_makes_room(
    visitors: list[tuple[Subnet, float | None]], data: st.DataObject
) -> None:
    newcomer = data.draw(st.sampled_from([A, B, C, LOOPBACK]))
    place = displaced(held(*visitors), newcomer, LIMITS)
    if place is not None and place >= 0:
        assert visitors[place][1] is not None


@pytest.mark.parametrize(
    ("client", "subnet"),
    [
        (("127.0.0.1", 1), LOOPBACK),
        (("127.9.9.9", 1), LOOPBACK),
        (("::1", 1), LOOPBACK),
        (("::ffff:127.0.0.1", 1), LOOPBACK),
        (None, LOOPBACK),
        (("192.0.2.7", 1), "192.0.2.0/24"),
        (("::ffff:192.0.2.9", 1), "192.0.2.0/24"),
        (("2001:db8:1:2::3", 1), "2001:db8:1::/48"),
        (("fe80::1%eth0", 1), "fe80::/48"),
    ],
)
def test_visitors_of_one_subnet_are_counted_together(client: tuple[str, int] | None, subnet: str) -> None:
    assert subnet_of_client(client) == subnet


def test_streams_leave_room_for_requests() -> None:
    assert VisitorLimits().connections >= 2 * MAX_STREAMS
    assert 2 * VisitorLimits().per_subnet < VisitorLimits().connections
