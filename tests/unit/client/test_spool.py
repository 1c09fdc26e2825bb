"""Spool: durable writes, state transitions, and reopening at any point."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.client.spool import Added, Spool, SpoolConfig
from p2prl.errors import MachineError
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.ledger_messages import Receipt, ReceiptState

NOW = 1_800_000_000.0


def free(spool: Spool, count: int) -> list[int]:
    """The slots that would be sampled next."""
    return list(itertools.islice(spool.slot_numbers().free(), count))


def name(number: int) -> Digest:
    return digest("p2prl/test-group", number.to_bytes(4, "big"))


def add(spool: Spool, number: int, *, version: int = 0, size: int = 100, now: float = NOW) -> None:
    spool.add(name(number), bytes(size), version=version, slot=number, tokens=7, reward=0.5, now=now)


def receipt(number: int, state: ReceiptState, reason: str = "") -> Receipt:
    return Receipt(name(number), b"p" * 32, 0, number, int(state), reason, 7, 8, 0.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "seat" / "spool.db"


ENDS = {
    ReceiptState.VERIFIED: "verified",
    ReceiptState.CREDITED_BY_SAMPLING: "verified",
    ReceiptState.REJECTED: "rejected",
    ReceiptState.EXPIRED: "expired",
}


@pytest.mark.parametrize("state", list(ReceiptState))
@pytest.mark.parametrize("stored_first", [False, True])
def test_a_group_is_settled_once(path: Path, state: ReceiptState, stored_first: bool) -> None:
    spool = Spool(path, SpoolConfig())
    add(spool, 0)
    assert spool.count_outstanding() == 1
    if stored_first:
        spool.mark_stored([name(0), name(9)])
        spool.mark_stored([name(0)])
    assert spool.settle(receipt(0, state, "why" if state is ReceiptState.REJECTED else ""))
    assert not spool.settle(receipt(0, ReceiptState.VERIFIED)), "a second verdict changes nothing"
    spool.mark_stored([name(0)])
    assert not spool.settle(receipt(5, state)), "somebody else's group"
    assert spool.counts() == {ENDS[state]: 1}
    assert spool.count_outstanding() == 0
    assert spool.reasons() == ({"why": 1} if state is ReceiptState.REJECTED else {})
    assert spool.verified_tokens() == (7 if ENDS[state] == "verified" else 0)
    spool.close()


def test_an_unknown_receipt_state_leaves_a_group_open(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    add(spool, 0)
    odd = Receipt(name(0), b"p" * 32, 0, 0, 77, "", 7, 8, 0.5)
    assert not spool.settle(odd)
    assert spool.count_outstanding() == 1
    spool.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "stored", "verified", "rejected", "reopen"]), st.integers(0, 12))))
def test_a_reopened_spool_remembers_everything(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    path = tmp_path_factory.mktemp("spool") / "spool.db"
    spool, states = Spool(path, SpoolConfig()), dict[int, str]()
    for step, number in steps:
        if step == "add":
            add(spool, number)
            states.setdefault(number, "generated")
        elif step == "stored":
            spool.mark_stored([name(number)])
            if states.get(number) == "generated":
                states[number] = "delivered"
        elif step in ("verified", "rejected"):
            spool.settle(receipt(number, ReceiptState[step.upper()]))
            if states.get(number) in ("generated", "delivered"):
                states[number] = step
        else:
            spool.close()
            spool = Spool(path, SpoolConfig())
        assert spool.counts() == {s: list(states.values()).count(s) for s in set(states.values())}
        assert len(spool.undelivered(100, created_before=NOW + 1)) == list(states.values()).count("generated")
        assert free(spool, 12) == [slot for slot in range(40) if slot not in states][:12]
    spool.close()


def test_slots_of_all_versions_count_also_in_a_spool_that_began_each_at_zero(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    for version, slot in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (2, 0), (2, 5)):
        spool.add(name(10 * version + slot), b"g", version=version, slot=slot, tokens=1, reward=0.0, now=NOW)
    assert free(spool, 3) == [3, 4, 6]
    assert len(spool.undelivered(100, created_before=NOW + 1)) == 7
    spool._db.execute("DROP TABLE slots_done")  # as an earlier release left it
    spool.close()
    spool = Spool(path, SpoolConfig())
    assert free(spool, 3) == [3, 4, 6]
    assert len(spool.undelivered(100, created_before=NOW + 1)) == 7
    spool.close()


def test_skipped_slots_are_remembered(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    add(spool, 0)
    add(spool, 4)
    spool.mark_slots_done(3)
    spool.close()
    spool = Spool(path, SpoolConfig())
    assert free(spool, 3) == [3, 5, 6]
    assert spool.slot_numbers().lowest == 3
    spool.close()


def test_groups_without_a_reward_are_left_out_of_the_mean(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    for number, reward in ((0, 0.5), (1, None), (2, 0.0), (3, 1.0)):
        spool.add(name(number), b"g", version=0, slot=number, tokens=1, reward=reward, now=NOW)
    assert spool.newest_rewards(10) == [0.5, 0.0, 1.0]
    assert spool.newest_rewards(2) == [0.0, 1.0]
    spool._db.execute("ALTER TABLE groups DROP COLUMN scored")  # as an earlier release left it
    spool.close()
    spool = Spool(path, SpoolConfig())
    assert len(spool.newest_rewards(10)) == 4
    spool.close()


def test_one_slot_has_one_group(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    add(spool, 0)
    for body in (b"", b"a large group's"):
        again = spool.add(name(99), b"again", version=0, slot=0, tokens=1, reward=0.0, now=NOW, body=body)
        assert again is Added.SLOT_TAKEN
    assert spool.undelivered(10, created_before=NOW + 1) == [bytes(100)]
    assert (spool.counts(), spool.body(name(99))) == ({"generated": 1}, b"")
    spool.close()


def test_undelivered_groups_come_oldest_first_without_the_newest(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    for number, age in ((0, 5.0), (1, 30.0), (2, 20.0)):
        spool.add(name(number), b"%d" % number, version=0, slot=number, tokens=1, reward=0.0, now=NOW - age)
    assert spool.undelivered(10, created_before=NOW - 10) == [b"1", b"2"]
    assert spool.undelivered(1, created_before=NOW - 10) == [b"1"]
    spool.mark_stored([name(1)])
    assert spool.undelivered(10, created_before=NOW) == [b"2", b"0"]
    assert spool.has_delivered(created_before=NOW - 10)
    assert not spool.has_delivered(created_before=NOW - 40)
    spool.close()


def test_groups_from_a_clock_that_was_ahead_are_not_counted(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    for number, made_at in enumerate((NOW - 60, NOW - 1, NOW, NOW + 300)):
        add(spool, number, now=made_at)
    assert spool.count_with_learner(created_after=NOW - 5, now=NOW) == 2
    spool.mark_stored([name(3)])
    assert spool.count_with_learner(created_after=NOW - 5, now=NOW) == 3, (
        "what the learner holds counts whenever it was made"
    )
    spool.close()


def test_the_newest_rewards_survive_a_restart(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    assert spool.newest_rewards(3) == []
    for number, reward in enumerate((0.1, 0.2, 0.3, 0.4)):
        spool.add(name(number), b"", version=0, slot=number, tokens=1, reward=reward, now=NOW)
    spool.close()
    assert Spool(path, SpoolConfig()).newest_rewards(3) == [0.2, 0.3, 0.4]


def test_groups_too_old_or_too_many_expire_oldest_first(path: Path) -> None:
    spool = Spool(path, SpoolConfig(max_bytes=250, max_age_s=100.0))
    for number, age in enumerate((101.0, 50.0, 40.0, 30.0, 20.0)):
        add(spool, number, now=NOW - age)
    spool.mark_stored([name(4)])  # the learner has it: it takes no space and does not expire
    assert spool.expire(now=NOW) == 2
    assert spool.counts() == {"expired": 2, "generated": 2, "delivered": 1}
    assert spool.reasons() == {"too_late": 1, "spool_full": 1}
    assert spool.expire(now=NOW) == 0
    assert free(spool, 1) == [5], "a slot given up is not sampled again"
    spool.close()


def test_the_ledger_position_survives_a_restart(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    assert spool.ledger_position == (0, bytes(32))
    spool.ledger_position = (7, name(7))
    spool.close()
    spool = Spool(path, SpoolConfig())
    assert spool.ledger_position == (7, name(7))
    spool.close()


def test_a_full_disk_is_reported_and_loses_nothing(path: Path) -> None:
    spool = Spool(path, SpoolConfig())
    add(spool, 0)
    pages = spool._db.execute("PRAGMA page_count").fetchone()[0]
    spool._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(MachineError, match="full") as caught:
        add(spool, 1, size=1_000_000)
    assert "Free some space" in caught.value.remedy
    spool.close()
    spool = Spool(path, SpoolConfig())
    assert spool.counts() == {"generated": 1}
    assert free(spool, 2) == [1, 2]
    add(spool, 1, size=1_000_000)
    spool.close()


def test_a_damaged_spool_is_told_from_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "a seat" / "spool.db"
    path.parent.mkdir()
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(MachineError, match="cannot open the spool") as caught:
        Spool(path, SpoolConfig())
    assert "damaged" in caught.value.remedy
    assert f"mv '{path}'" in caught.value.remedy
    path.rename(path.with_name("spool.db.damaged"))
    Spool(path, SpoolConfig()).close()


def test_an_unusable_path_is_reported(tmp_path: Path) -> None:
    (tmp_path / "seat").write_text("")
    with pytest.raises(MachineError, match="cannot open the spool") as caught:
        Spool(tmp_path / "seat" / "spool.db", SpoolConfig())
    assert caught.value.remedy
