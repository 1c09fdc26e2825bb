"""Work slots: derived by rule, fair, and independent of order."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol.manifests import TaskShare
from p2prl.protocol.work_slots import SEED_BITS, SlotKey, slot_work

KEY = SlotKey(run=b"r" * 32, beacon=b"b" * 32, policy=b"p" * 32, peer=b"k" * 32, slot=7)
MIX = (TaskShare("chain4", 3.0), TaskShare("sort", 1.0))


def derived(domain: str, key: SlotKey, *extra: bytes) -> int:
    """The written rule: SHA-256 over length-prefixed parts, first eight bytes little-endian, top bit dropped."""
    text = b""
    for part in (domain.encode(), key.run, key.beacon, key.policy, key.peer, key.slot.to_bytes(8, "little"), *extra):
        text += len(part).to_bytes(8, "little") + part
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") // 2


def test_seeds_follow_the_rule() -> None:
    slot = slot_work(KEY, MIX, 3)
    task = slot.task.encode()
    assert slot.prompt_seed == derived("p2prl/prompt-seed/v1", KEY, task)
    expected = [derived("p2prl/sample-seed/v1", KEY, task, i.to_bytes(4, "little")) for i in range(3)]
    assert list(slot.sample_seeds) == expected
    share = derived("p2prl/task-choice/v1", KEY) / 2**63
    assert slot.task == ("chain4" if share < 0.75 else "sort")


def test_tasks_are_drawn_by_share() -> None:
    drawn = [slot_work(replace(KEY, slot=k), MIX, 1).task for k in range(4000)]
    # Binomial(4000, 3/4): 3000 ± 27; five sigmas.
    assert abs(drawn.count("chain4") - 3000) < 137


@pytest.mark.parametrize("name", ["run", "beacon", "policy", "peer"])
def test_seeds_depend_on_every_part_of_the_key(name: str) -> None:
    parts = {part: getattr(KEY, part) for part in ("run", "beacon", "policy", "peer")} | {name: b"x" * 32}
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
