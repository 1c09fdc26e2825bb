"""Work slots: derived by rule, fair, and independent of order."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2prl.protocol.manifests import TaskShare
from p2prl.protocol.work_slots import PERIOD, SEED_BITS, RowOrderKey, SlotKey, row_of, slot_work, task_of_slot

KEY = SlotKey(run=b"r" * 32, beacon=b"b" * 32, peer=b"k" * 32, slot=7)
MIX = (TaskShare("chain4", 3.0), TaskShare("sort", 1.0))


def derived(domain: str, key: SlotKey, *extra: bytes) -> int:
    """The written rule: SHA-256 over length-prefixed parts, first eight bytes little-endian, top bit dropped."""
    text = b""
    for part in (domain.encode(), key.run, key.beacon, key.peer, key.slot.to_bytes(8, "little"), *extra):
        text += len(part).to_bytes(8, "little") + part
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") // 2


def test_seeds_follow_the_rule() -> None:
    slot = slot_work(KEY, MIX, 3)
    task = slot.task.encode()
    assert slot.prompt_seed == derived("p2prl/prompt-seed/v2", KEY, task)
    expected = [derived("p2prl/sample-seed/v2", KEY, task, i.to_bytes(4, "little")) for i in range(3)]
    assert list(slot.sample_seeds) == expected


def test_task_is_that_of_the_schedule_from_the_peers_place() -> None:
    text = b"".join(len(part).to_bytes(8, "little") + part for part in (b"p2prl/task-schedule/v1", KEY.run, KEY.peer))
    start = int.from_bytes(hashlib.sha256(text).digest()[:8], "little") // 2 % PERIOD
    for number in range(40):
        slot = slot_work(replace(KEY, slot=number), MIX, 1)
        scheduled = task_of_slot([3.0, 1.0], start=start, slot=number)
        assert (slot.task, slot.number) == (MIX[scheduled.task].task, scheduled.number)


def test_tasks_come_by_share_whatever_the_beacon() -> None:
    drawn = [slot_work(replace(KEY, slot=k), MIX, 1).task for k in range(PERIOD)]
    assert drawn.count("chain4") == 3072
    others = [slot_work(replace(KEY, slot=k, beacon=b"c" * 32), MIX, 1).task for k in range(PERIOD)]
    assert drawn == others


@settings(max_examples=10)
@given(
    st.binary(min_size=32, max_size=32),
    st.integers(1, 60),
    st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4),
    st.integers(0, 1 << 20),
)
def test_each_row_comes_once_a_pass_on_every_peer(peer: bytes, rows: int, weights: list[float], policies: int) -> None:
    """In a mix too, and over policy versions: the slots of a peer continue when a new version is loaded."""
    mix = tuple(TaskShare(str(number), weight) for number, weight in enumerate(weights))
    drawn: list[int] = []
    for number in range(40 * rows):
        key = SlotKey(KEY.run, (policies + number // 7).to_bytes(32, "little"), peer, number)
        slot = slot_work(key, mix, 1)
        if slot.task == "0":
            drawn.append(row_of(RowOrderKey(KEY.run, peer, "0"), slot.number, rows))
    for start in range(0, len(drawn) - rows + 1, rows):
        assert sorted(drawn[start : start + rows]) == list(range(rows))
    unfinished = drawn[len(drawn) - len(drawn) % rows :]
    assert len(set(unfinished)) == len(unfinished)


@pytest.mark.parametrize("name", ["run", "beacon", "peer"])
def test_seeds_depend_on_every_part_of_the_key(name: str) -> None:
    parts = {part: getattr(KEY, part) for part in ("run", "beacon", "peer")} | {name: b"x" * 32}
    base, other = slot_work(KEY, MIX[:1], 4), slot_work(SlotKey(**parts, slot=KEY.slot), MIX[:1], 4)
    assert base.prompt_seed != other.prompt_seed
    assert not set(base.sample_seeds) & set(other.sample_seeds)


@given(st.permutations(range(12)))
def test_order_does_not_matter(order: list[int]) -> None:
    shuffled = {k: slot_work(replace(KEY, slot=k), MIX, 2) for k in order}
    assert [shuffled[k] for k in range(12)] == [slot_work(replace(KEY, slot=k), MIX, 2) for k in range(12)]


def test_seeds_are_distinct_and_63_bits_long() -> None:
    seeds = [seed for k in range(200) for seed in slot_work(replace(KEY, slot=k), MIX, 8).sample_seeds]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 1 << SEED_BITS for seed in seeds)
    assert max(seeds) > 1 << 62, "the top bit is used"


def test_larger_group_extends_a_smaller_one() -> None:
    assert slot_work(KEY, MIX, 8).sample_seeds[:3] == slot_work(KEY, MIX, 3).sample_seeds
