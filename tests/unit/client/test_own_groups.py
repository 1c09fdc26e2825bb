"""Groups kept after their delivery: within their room, rejected ones longest, and never at the cost of other work."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from p2prl.client import kept_groups
from p2prl.client.own_groups import OwnGroups
from p2prl.client.spool import Spool, SpoolConfig
from p2prl.errors import MachineError
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.ledger_messages import Receipt, ReceiptState

NOW = 1_800_000_000.0


def name(number: int) -> Digest:
    return digest("p2prl/test-group", number.to_bytes(4, "big"))


def deliver(spool: Spool, number: int, *, size: int = 1_000, state: ReceiptState | None = None) -> None:
    spool.add(
        name(number), bytes([number]) * size, version=0, slot=number, tokens=7, reward=None, now=NOW + number, body=b"b"
    )
    spool.mark_stored([name(number)])
    if state is not None:
        spool.settle(Receipt(name(number), b"p" * 32, 0, number, int(state), "", 7, 2, 0.5), step=4, sent_ms=9)


def kept(path: Path) -> set[int]:
    groups = OwnGroups(path)
    found = {group.slot for group in groups.newest(1_000) if group.is_kept}
    groups.close()
    return found


def test_a_judged_group_keeps_its_bytes_and_its_receipt(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool.db", SpoolConfig())
    deliver(spool, 1, state=ReceiptState.VERIFIED)
    groups = OwnGroups(tmp_path / "spool.db")  # beside a spool that is open, as beside a running worker
    (group,) = groups.newest(9)
    assert group.receipt is not None
    assert (group.receipt.step, group.receipt.sent_ms, group.receipt.tokens, group.receipt.reward) == (4, 9, 7, 0.5)
    assert groups.bytes_of(name(1)) == (b"\1" * 1_000, b"b")
    assert groups.bytes_of(name(2)) is None
    assert spool.undelivered(9, created_before=NOW * 2) == [], "a kept group is not sent again"
    groups.close()
    spool.close()


def test_verified_groups_make_room_first_and_then_the_oldest(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    spool = Spool(path, SpoolConfig(max_bytes=8 * 4 * 1_001))  # room for four kept groups
    states = [ReceiptState.REJECTED, ReceiptState.VERIFIED, ReceiptState.REJECTED, ReceiptState.VERIFIED]
    for number, state in enumerate(states):
        deliver(spool, number, state=state)
    spool.expire(now=NOW)
    assert kept(path) == {0, 1, 2, 3}
    deliver(spool, 4)
    spool.expire(now=NOW)
    assert kept(path) == {0, 2, 3, 4}
    for number in (5, 6, 7):
        deliver(spool, number, state=ReceiptState.REJECTED)
    spool.expire(now=NOW)
    assert kept(path) == {4, 5, 6, 7}
    spool.close()


def test_undelivered_work_takes_the_room_of_kept_groups(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    spool = Spool(path, SpoolConfig(max_bytes=40_000))
    for number in range(4):
        deliver(spool, number, state=ReceiptState.REJECTED)
    spool.add(name(9), bytes(39_000), version=0, slot=9, tokens=7, reward=None, now=NOW)
    assert spool.expire(now=NOW) == 0, "undelivered work stays"
    assert kept(path) == {9}
    spool.close()


def test_all_that_is_kept_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_groups, "KEPT_BYTES", 2_002)
    spool = Spool(tmp_path / "spool.db", SpoolConfig())
    for number in range(9):
        deliver(spool, number)
    spool.expire(now=NOW)
    assert kept(tmp_path / "spool.db") == {7, 8}
    spool.close()


def test_a_group_leaves_the_spool_even_if_it_cannot_be_kept(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    spool = Spool(path, SpoolConfig())
    other = sqlite3.connect(path)
    other.execute(
        "CREATE TRIGGER full BEFORE INSERT ON kept BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"
    )
    other.commit()
    other.close()
    deliver(spool, 1, state=ReceiptState.VERIFIED)
    assert spool.counts() == {"verified": 1}
    assert kept(path) == set()
    spool.close()


def test_a_spool_of_an_older_release_is_read_without_receipts(tmp_path: Path) -> None:
    path = tmp_path / "spool.db"
    spool = Spool(path, SpoolConfig())
    deliver(spool, 1, state=ReceiptState.VERIFIED)
    spool.close()
    old = sqlite3.connect(path)
    old.executescript("DROP TABLE kept; DROP TABLE receipts;")
    old.close()
    groups = OwnGroups(path)
    (group,) = groups.named(name(1).hex()[:6], 2)
    assert (group.state, group.receipt, group.is_kept) == ("verified", None, False)
    assert groups.newest_credited(5) == frozenset()
    groups.close()


def test_a_file_that_is_no_spool_is_refused(tmp_path: Path) -> None:
    (tmp_path / "spool.db").write_bytes(b"junk" * 400)
    with pytest.raises(MachineError):
        OwnGroups(tmp_path / "spool.db")
    with pytest.raises(MachineError):
        OwnGroups(tmp_path / "missing.db")
