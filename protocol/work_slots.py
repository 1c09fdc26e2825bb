"""Work slots: work that every volunteer derives for itself, without a dispatcher.

Slot `k` of peer `p` fixes the task, the prompt and the sampling seed of every completion. A volunteer can continue
while the learner is unreachable, and each slot has exactly one valid group under a policy: there is nothing to copy.

The volunteer picks the policy, so nothing that is drawn depends on it but through the beacon, which the
`VERSIONS_PER_BEACON` versions of a *beacon period* share. A volunteer that samples a slot under many versions and
delivers the best sees one draw of noise, not one for each version: what is left to choose is how far the policy moved.

The slots of a peer repeat one period of `PERIOD` places, each peer from a place of its own. Within it the tasks are
spread as evenly as their shares allow. So a slot's task and its number among the peer's slots of that task are known
without looking at any other slot, and a data task gets its rows in order, each once a pass.

Each row comes once a pass, in an order that nobody chooses and any machine computes for one slot alone. The permutation
is a Feistel network over the smallest even number of bits that holds every row; a value that is no row is permuted
again until it is one ("cycle walking": Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from p2prl.protocol.manifests import TaskShare

_DOMAIN = b"p2prl/row-order/v1"

_ROUNDS = 6
"""Four rounds make a random permutation of a large set; a small one needs a few more to mix all its bits."""


@dataclass(frozen=True, slots=True)
class RowOrderKey:
    """Whose order it is, and of which data."""

    run: bytes
    peer: bytes
    task: str


def row_of(key: RowOrderKey, number: int, rows: int) -> int:
    """Row of a peer's slot that has `number` earlier slots of the same task, within 0..rows − 1."""
    pass_number, place = divmod(number, rows)
    half = max(1, -(-(rows - 1).bit_length() // 2))
    prefix = _prefix(key, pass_number)
    while True:
        place = _permute(prefix, place, half)
        if place < rows:
            return place


def _permute(prefix: bytes, value: int, half: int) -> int:
    """One pass of the Feistel network over `2 · half` bits."""
    mask = (1 << half) - 1
    left, right = value >> half, value & mask
    for number in range(_ROUNDS):
        word = hashlib.sha256(prefix + bytes((number,)) + right.to_bytes(8, "little")).digest()
        left, right = right, left ^ (int.from_bytes(word[:8], "little") & mask)
    return left << half | right


def _prefix(key: RowOrderKey, pass_number: int) -> bytes:
    """The length-prefixed parts that every round hashes."""
    parts = (_DOMAIN, key.run, key.peer, key.task.encode(), pass_number.to_bytes(8, "little"))
    return b"".join(len(part).to_bytes(8, "little") + part for part in parts)


PERIOD = 4096
"""Places of a period: a task's share of the slots is rounded to 1/4096, and is at least that."""


@dataclass(frozen=True, slots=True)
class ScheduledTask:
    """Task of a slot."""

    task: int
    """Its place in the mix."""
    number: int
    """How many of the peer's earlier slots have the same task."""


def task_of_slot(weights: Sequence[float], *, start: int, slot: int) -> ScheduledTask:
    """Task of slot `slot` of a peer whose slot 0 takes place `start` of the period, `0 <= start < PERIOD`."""
    places, counts = _period(tuple(weights))
    periods, place = divmod(start + slot, PERIOD)
    task, number = places[place].task, places[place].number
    return ScheduledTask(task, periods * counts[task] + number - _before(tuple(weights), start)[task])


@lru_cache(maxsize=16)
def _period(weights: tuple[float, ...]) -> tuple[tuple[ScheduledTask, ...], tuple[int, ...]]:
    """The places of a period, and the number of places of each task. Exact, so that every machine agrees."""
    counts = _place_counts(weights)
    # The k-th of n places of a task is due at (2k + 1) / 2n of the period.
    due = sorted((Fraction(2 * k + 1, 2 * n), task, k) for task, n in enumerate(counts) for k in range(n))
    return tuple(ScheduledTask(task, k) for _, task, k in due), counts


@lru_cache(maxsize=256)
def _before(weights: tuple[float, ...], start: int) -> tuple[int, ...]:
    """Number of places of each task before place `start`."""
    counts = [0] * len(weights)
    for place in _period(weights)[0][:start]:
        counts[place.task] += 1
    return tuple(counts)


def _place_counts(weights: tuple[float, ...]) -> tuple[int, ...]:
    """One place for each task, and the others by largest remainder; of equal remainders the first task's counts more.

    A mix has far fewer tasks than a period has places.
    """
    shares = [Fraction(weight) for weight in weights]
    total, free = sum(shares), PERIOD - len(shares)
    exact = [free * share / total for share in shares]
    counts = [1 + int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda task: (int(exact[task]) - exact[task], task))
    for task in by_remainder[: PERIOD - sum(counts)]:
        counts[task] += 1
    return tuple(counts)


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
    """How many of the peer's earlier slots have the same task. It selects the row of a data task (`row_of`)."""
    prompt_seed: int
    """Selects the prompt of a procedural task."""
    sample_seeds: tuple[int, ...]


def begins_beacon(version: int) -> bool:
    """Whether a version has a beacon of its own, random bytes from its publisher; others repeat the one before."""
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
