"""Section 8 of `docs/protocol.md` is enough to rebuild slots and sampling noise: written from its text, both agree."""

from __future__ import annotations

import hashlib
import math
import random
import struct
from pathlib import Path

import torch

from p2prl.models.seeded_draw.gumbel_noise import gumbel
from p2prl.protocol.manifests import TaskShare
from p2prl.protocol.work_slots import RowOrderKey, SlotKey, row_of, slot_work, task_of_slot

TEXT = (Path(__file__).parents[3] / "docs/protocol.md").read_text()
MASK = (1 << 32) - 1


def murmur3_32(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0, for whole blocks of four bytes."""

    def rotated(x: int, bits: int) -> int:
        return (x << bits | x >> (32 - bits)) & MASK

    state = 0
    for (block,) in struct.iter_unpack("<I", data):
        state ^= rotated(block * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK
        state = (rotated(state, 13) * 5 + 0xE6546B64) & MASK
    state ^= len(data)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ state >> shift) * factor & MASK
    return state ^ state >> 16


def noise(seed: int, t: int, v: int) -> float:
    h = murmur3_32(struct.pack("<IIII", seed & MASK, seed >> 32, t, v))
    double = -math.log(-math.log((h + 0.5) / 2**32))
    (single,) = struct.unpack("<f", struct.pack("<f", double))
    return float(single)


def derived(domain: str, key: SlotKey, *extra: bytes) -> int:
    parts = (domain.encode(), key.run, key.beacon, key.peer, key.slot.to_bytes(8, "little"), *extra)
    hashed = hashlib.sha256(b"".join(len(part).to_bytes(8, "little") + part for part in parts)).digest()
    return int.from_bytes(hashed[:8], "little") >> 1


def test_noise() -> None:
    rng = random.Random(1)
    for _ in range(200):
        seed, t = rng.getrandbits(63), rng.randrange(32_768)
        made = gumbel(torch.tensor([seed]), torch.tensor([[t]]), 7)[0, 0].tolist()
        assert made == [noise(seed, t, v) for v in range(7)]


def test_noise_examples() -> None:
    lines = TEXT.split("| seed | t | v | gumbel |\n|---|---|---|---|\n")[1].split("\n\n")[0].splitlines()
    for line in lines:
        seed, t, v, expected = (cell.strip() for cell in line.strip("|").split("|"))
        assert noise(int(seed), int(t), int(v)) == float(expected)


def length_prefixed(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


def places(weights: list[float]) -> list[int]:
    """The task of each of the 4,096 places, in whole numbers alone: every share over one denominator."""
    ratios = [weight.as_integer_ratio() for weight in weights]
    common = math.lcm(*(below for _, below in ratios))
    whole = [above * (common // below) for above, below in ratios]
    free = 4096 - len(whole)
    counts, fractions = [], []
    for share in whole:
        quotient, remainder = divmod(free * share, sum(whole))
        counts.append(1 + quotient)
        fractions.append(remainder)
    while sum(counts) < 4096:
        largest = fractions.index(max(fractions))
        counts[largest] += 1
        fractions[largest] = -1
    period = math.lcm(*(2 * count for count in counts))
    due = [((2 * i + 1) * (period // (2 * n)), j) for j, n in enumerate(counts) for i in range(n)]
    return [task for _, task in sorted(due)]


def row(key: SlotKey, task: str, m: int, rows: int) -> int:
    half = max(1, (len(f"{rows - 1:b}") if rows > 1 else 0) + 1 >> 1)
    turn = (m // rows).to_bytes(8, "little")
    prefix = length_prefixed(b"p2prl/row-order/v1", key.run, key.peer, task.encode(), turn)

    def f(i: int, right: int) -> int:
        hashed = hashlib.sha256(prefix + bytes([i]) + right.to_bytes(8, "little")).digest()
        return int.from_bytes(hashed[:8], "little") % (1 << half)

    value = m % rows
    while True:
        left, right = divmod(value, 1 << half)
        for i in range(6):
            left, right = right, left ^ f(i, right)
        value = left * (1 << half) + right
        if value < rows:
            return value


def test_slots() -> None:
    rng = random.Random(2)
    weights = [0.7, 2.5, 1e-3]
    mix = tuple(TaskShare(name, weight) for name, weight in zip(("chain4", "walk12", "third"), weights, strict=True))
    order = places(weights)
    for _ in range(500):
        run, beacon, peer = (rng.randbytes(32) for _ in range(3))
        slot = rng.randrange(12_000)
        key = SlotKey(run=run, beacon=beacon, peer=peer, slot=slot)
        hashed = hashlib.sha256(length_prefixed(b"p2prl/task-schedule/v1", run, peer)).digest()
        start = (int.from_bytes(hashed[:8], "little") >> 1) % 4096
        turn = [order[(start + k) % 4096] for k in range(slot + 1)]
        task, m = mix[turn[-1]].task, turn[:-1].count(turn[-1])
        work = slot_work(key, mix, 3)
        name = task.encode()
        assert (work.task, work.number, work.prompt_seed) == (task, m, derived("p2prl/prompt-seed/v2", key, name))
        assert list(work.sample_seeds) == [
            derived("p2prl/sample-seed/v2", key, name, i.to_bytes(4, "little")) for i in range(3)
        ]
        rows = rng.choice((1, 2, 3, 7473, 65536, 10**6, 2**32))
        assert row_of(RowOrderKey(run, peer, task), m, rows) == row(key, task, m, rows)


def test_equal_remainders_favor_the_first_task() -> None:
    for weights in ([3.0, 1.0], [1.0, 1.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0], [5.0, 4.0, 1e-6]):
        made = [task_of_slot(weights, start=0, slot=slot).task for slot in range(4096)]
        assert made == places(weights)
