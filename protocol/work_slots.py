"""Work slots: work that every volunteer derives for itself, without a dispatcher.

Slot `k` of peer `p` under policy version `v` fixes the task, the prompt and the sampling seed of every completion. A
volunteer can continue while the learner is unreachable, and each slot has exactly one valid group: there is nothing to
cherry-pick and nothing to copy.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.protocol.manifests import TaskShare

SEED_BITS = 63
_SAMPLE_DOMAIN = b"p2prl/sample-seed/v1"
_PROMPT_DOMAIN = b"p2prl/prompt-seed/v1"
_TASK_DOMAIN = b"p2prl/task-choice/v1"


@dataclass(frozen=True, slots=True)
class SlotKey:
    """Inputs of a slot's randomness. `policy` is the digest of the policy manifest's envelope."""

    run: bytes
    beacon: bytes
    policy: bytes
    peer: bytes
    slot: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Work of one slot."""

    task: str
    prompt_seed: int
    sample_seeds: tuple[int, ...]


def slot_work(key: SlotKey, tasks: Sequence[TaskShare], group_size: int) -> Slot:
    """Derive the work of a slot: its task (by its share of the mix), prompt seed and G sampling seeds."""
    draw = _derive(_TASK_DOMAIN, key) / (1 << SEED_BITS) * sum(share.weight for share in tasks)
    task = tasks[-1].task
    for share in tasks:
        draw -= share.weight
        if draw < 0:
            task = share.task
            break
    name = task.encode()
    return Slot(
        task=task,
        prompt_seed=_derive(_PROMPT_DOMAIN, key, name),
        sample_seeds=tuple(_derive(_SAMPLE_DOMAIN, key, name, i.to_bytes(4, "little")) for i in range(group_size)),
    )


def _derive(domain: bytes, key: SlotKey, *extra: bytes) -> int:
    """63 bits of the SHA-256 of length-prefixed parts."""
    hasher = hashlib.sha256()
    for part in (domain, key.run, key.beacon, key.policy, key.peer, key.slot.to_bytes(8, "little"), *extra):
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return int.from_bytes(hasher.digest()[:8], "little") >> 1
