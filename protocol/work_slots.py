"""Work slots: work that every volunteer derives for itself, without a dispatcher.

Slot `k` of peer `p` fixes the task, the prompt and the sampling seed of every completion. A volunteer can continue
while the learner is unreachable, and each slot has exactly one valid group under a policy: there is nothing to copy.

The volunteer picks the policy, so nothing that is drawn depends on it but through the beacon, which the
`VERSIONS_PER_BEACON` versions of a *beacon period* share. A volunteer that samples a slot under many versions and
delivers the best sees one draw of noise, not one for each version: what is left to choose is how far the policy moved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from p2prl.protocol.manifests import TaskShare
from p2prl.protocol.task_schedule import PERIOD, task_of_slot

SEED_BITS = 63

SEED_RULE = 2
"""Number of the rule below, which a group names. By rule 1 seeds depended on the policy too."""

VERSIONS_PER_BEACON = 64
"""Versions in a row that share a beacon: the versions of one staleness window, in most runs, so that most choices of a
version are among equals; and few enough that a key cannot look for lucky slots long before it samples them."""

_SAMPLE_DOMAIN = b"p2prl/sample-seed/v2"
_PROMPT_DOMAIN = b"p2prl/prompt-seed/v2"
_START_DOMAIN = b"p2prl/task-schedule/v1"


@dataclass(frozen=True, slots=True)
class SlotKey:
    """Inputs of a slot's randomness. `beacon` is that of the policy's manifest."""

    run: bytes
    beacon: bytes
    peer: bytes
    slot: int


@dataclass(frozen=True, slots=True)
class Slot:
    """Work of one slot."""

    task: str
    number: int
    """How many of the peer's earlier slots have the same task. It selects the row of a data task (`row_order`)."""
    prompt_seed: int
    """Selects the prompt of a procedural task."""
    sample_seeds: tuple[int, ...]


def begins_beacon(version: int) -> bool:
    """Whether a version draws a beacon; others repeat that of the version before."""
    return version % VERSIONS_PER_BEACON == 0


def slot_work(key: SlotKey, tasks: Sequence[TaskShare], group_size: int) -> Slot:
    """Derive the work of a slot: its task (by its share of the mix), prompt seed and G sampling seeds."""
    start = _number(_START_DOMAIN, key.run, key.peer) % PERIOD
    scheduled = task_of_slot([share.weight for share in tasks], start=start, slot=key.slot)
    task = tasks[scheduled.task].task
    name = task.encode()
    return Slot(
        task=task,
        number=scheduled.number,
        prompt_seed=_derive(_PROMPT_DOMAIN, key, name),
        sample_seeds=tuple(_derive(_SAMPLE_DOMAIN, key, name, i.to_bytes(4, "little")) for i in range(group_size)),
    )


def _derive(domain: bytes, key: SlotKey, *extra: bytes) -> int:
    """63 bits that depend on all of a slot's key."""
    return _number(domain, key.run, key.beacon, key.peer, key.slot.to_bytes(8, "little"), *extra)


def _number(*parts: bytes) -> int:
    """63 bits of the SHA-256 of length-prefixed parts."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return int.from_bytes(hasher.digest()[:8], "little") >> 1
