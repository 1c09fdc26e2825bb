"""Section 8 of `docs/protocol.md` is enough to rebuild slots and sampling noise: written from its text, both agree."""

from __future__ import annotations

import hashlib
import math
import random
import struct
from pathlib import Path

import torch

from p2prl.models.gumbel_noise import gumbel
from p2prl.protocol.manifests import TaskShare
from p2prl.protocol.work_slots import SlotKey, slot_work

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
    parts = (domain.encode(), key.run, key.beacon, key.policy, key.peer, key.slot.to_bytes(8, "little"), *extra)
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


def test_slots() -> None:
    rng = random.Random(2)
    mix = (TaskShare("chain4", 0.7), TaskShare("walk12", 2.5), TaskShare("third", 1e-3))
    for slot in range(500):
        run, beacon, policy, peer = (rng.randbytes(32) for _ in range(4))
        key = SlotKey(run=run, beacon=beacon, policy=policy, peer=peer, slot=slot)
        rest = derived("p2prl/task-choice/v1", key) / 2**63 * (0.7 + 2.5 + 1e-3)
        task = mix[-1].task
        for share in mix:
            rest -= share.weight
            if rest < 0:
                task = share.task
                break
        work = slot_work(key, mix, 3)
        name = task.encode()
        assert (work.task, work.prompt_seed) == (task, derived("p2prl/prompt-seed/v1", key, name))
        assert list(work.sample_seeds) == [
            derived("p2prl/sample-seed/v1", key, name, i.to_bytes(4, "little")) for i in range(3)
        ]
