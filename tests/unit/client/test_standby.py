"""A volunteer on standby: by whose word, from when until when, and what becomes of the groups it has begun."""

from __future__ import annotations

import pytest

from p2prl.client.standby import StandbyFollower
from p2prl.protocol.peer_messages import Standby

ME, OTHER = bytes(32), bytes([1]) * 32
NOW_MS = 1_800_000_000_000
NOW = NOW_MS / 1000


def message(*peers: bytes, seconds: int = 300) -> Standby:
    return Standby(peers, NOW_MS + 1000 * seconds)


def test_it_stands_by_from_the_message_to_its_end() -> None:
    follower = StandbyFollower(ME, is_agreed=True)
    assert follower.reason(NOW) == ""
    follower.take(message(OTHER, ME), NOW_MS)
    assert follower.reason(NOW).startswith("standing by until ")
    assert follower.reason(NOW + 299.9)
    assert follower.reason(NOW + 300.0) == ""


def test_a_newer_message_without_it_ends_the_standby() -> None:
    follower = StandbyFollower(ME, is_agreed=True)
    follower.take(message(ME), NOW_MS)
    follower.take(message(OTHER), NOW_MS + 1)
    assert follower.reason(NOW) == ""


@pytest.mark.parametrize("earlier_ms", [0, 1, 60_000])
def test_an_older_message_says_nothing(earlier_ms: int) -> None:
    follower = StandbyFollower(ME, is_agreed=True)
    follower.take(message(OTHER), NOW_MS)
    follower.take(message(ME), NOW_MS - earlier_ms)
    assert follower.reason(NOW) == ""


def test_nobody_stands_by_without_agreement() -> None:
    follower = StandbyFollower(ME, is_agreed=False)
    follower.take(message(ME), NOW_MS)
    assert follower.reason(NOW) == ""
