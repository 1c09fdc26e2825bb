"""Shared keys: another process with our key is found by its directory record, and the later one of the two stops."""

from __future__ import annotations

import pytest

from p2prl import errors
from p2prl.net.process import control
from p2prl.net.process.bridge import LEARNER_ELSEWHERE
from p2prl.net.process.key_use import GRACE_S, KeyUse
from p2prl.net.process.network_process import KEY_SHARED, KEY_TAKEN, LEARNER_SHARED
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import PeerRecord

ME = Identity(bytes(16))
START_S = 1_800_000_000.0
LATER_S = START_S + 60


def record(started: float, at: float) -> bytes:
    body = PeerRecord(int(Role.VOLUNTEER), ("/ip4/127.0.0.1/tcp/4001",), -1, int(started * 1000))
    return seal(ME, body, run=Digest(bytes(32)), now=at)


def found(*directory: bytes, started: float = START_S) -> list[bool]:
    """Reports of a shared key while the directory returns these records in turn: whether this process has to stop."""
    calls: list[bool] = []
    use = KeyUse(ME.peer_id, started, calls.append)
    use.read({})
    for raw in directory:
        use.read({ME.peer_id: [raw]})
    return calls


def test_our_own_record_is_not_reported() -> None:
    assert found(record(START_S, START_S + 40)) == []


def test_a_record_of_our_earlier_process_is_not_reported() -> None:
    ending = START_S + GRACE_S - 0.001
    assert found(record(START_S - 500, START_S - 1), record(START_S - 500, ending)) == []


def test_the_later_process_stops_and_the_earlier_one_is_told_once() -> None:
    both_alive = LATER_S + GRACE_S
    earlier, later = record(START_S, both_alive), record(LATER_S, both_alive)
    assert found(earlier, earlier, started=LATER_S) == [True]
    assert found(later, later, started=START_S) == [False]


def test_garbage_under_our_name_is_ignored() -> None:
    assert found(b"\x00") == []


@pytest.mark.parametrize("message", [KEY_SHARED, KEY_TAKEN])
def test_both_are_told_what_to_do(message: control.Warned | control.Failed) -> None:
    assert "p2prl key delegate" in message.remedy


@pytest.mark.parametrize("message", [LEARNER_SHARED, LEARNER_ELSEWHERE])
def test_learners_are_told_to_follow_with_a_new_folder(message: control.Warned | control.Failed) -> None:
    assert "p2prl learn NEW_FOLDER --standby" in message.remedy
    assert "--home" not in message.remedy


def test_the_later_one_ends_with_the_exit_code_of_keys() -> None:
    assert getattr(errors, KEY_TAKEN.error).exit_code == 6
