"""Shared keys: another process with our key is detected by a directory record that we did not write."""

from __future__ import annotations

from p2prl.net.process.key_use import KeyUse
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import PeerRecord

ME = Identity(bytes(16))
START_S = 1_800_000_000.0


def record(port: int, at: float) -> bytes:
    body = PeerRecord(int(Role.VOLUNTEER), (f"/ip4/127.0.0.1/tcp/{port}",), -1)
    return seal(ME, body, run=Digest(bytes(32)), now=at)


def found(*directory: bytes) -> int:
    """Number of reports of a shared key while the directory returns these records in turn."""
    calls: list[None] = []
    use = KeyUse(ME.peer_id, START_S, lambda: calls.append(None))
    use.wrote(record(1, START_S + 1))
    use.read({})
    for raw in directory:
        use.read({ME.peer_id: raw})
    return len(calls)


def test_our_own_record_is_not_reported() -> None:
    assert found(record(1, START_S + 1)) == 0


def test_a_record_of_an_earlier_start_is_not_reported() -> None:
    assert found(record(2, START_S - 1)) == 0


def test_a_newer_record_of_our_key_is_reported_once() -> None:
    assert found(record(2, START_S + 3), record(2, START_S + 33)) == 1


def test_garbage_under_our_name_is_ignored() -> None:
    assert found(b"\x00") == 0
