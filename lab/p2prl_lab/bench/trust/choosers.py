"""Volunteers that choose what they deliver: how much of the training they get, and what that costs a run.

A chooser samples as fast as it likes, and begins when the honest volunteers have standing. `Books` is the product's
intake, which says what of its groups is trained on; a run is then trained with that share of its groups chosen.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from p2prl.learner.intake.batch_caps import IDENTITY_PERCENT, NEWCOMER_PERCENT
from p2prl.protocol.digests import digest
from p2prl.protocol.work_slots import VERSIONS_PER_BEACON
from p2prl_lab.bench.training.environments import environment_by_name
from p2prl_lab.bench.training.warm_start import warm_start_of
from p2prl_lab.bench.trust.books import GROUPS_PER_UPDATE, UPDATE_S, Books, Offer
from p2prl_lab.bench.trust.chosen_training import ChosenTraining, Wanted

_SUPPLY = 1.1
"""Groups of all honest volunteers together, of those that an update takes."""

_TRIES = 32
"""Groups that choosers offer in the time of an update: twice what it takes."""

_SKIPPED = 1_000
"""Slots of which one that skips delivers one."""

_EARNED_BY_OWNER = 80
"""Groups that an owner settles before it makes machines."""

_CHOICES = 8
"""Slots that a chosen group is the best of, in training."""

_TASK, _RATE, _EVALUATED = "chain4", 5e-4, 2_048
_SHARES = 10
"""Influences are rounded up to a multiple of one tenth: each other share would be a run to train."""

_CHOSEN_SLOTS = 1 << 38

Author = Iterator[None]
"""Offers what it has for one update at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """A way to choose."""

    begin: Callable[[Books, int], Author]
    """Of this many keys."""
    cap: float
    """Most influence that it may have."""
    wanted: Wanted
    """How a chosen group was made."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChooserRow:
    """What a kind of choosers gets, and does."""

    attack: str
    keys: int
    honest: int
    checks: bool
    """Whether the learner has slot accounts, standing and caps, and versions draw the same noise."""
    choice: str
    influence: float
    """Chosen groups, of those trained on."""
    cap: float
    reward_difference: float
    """Of the final reward to that of the honest run of the same seed, mean over the seeds."""
    standard_error: float
    voided: int
    """Honest groups that were not credited."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChooserPlan:
    """Size of the part."""

    updates: int = 100
    seeds: int = 6


def _key(*name: object) -> bytes:
    return digest("p2prl/bench/key", repr(name).encode())


def _by_version(newest: int) -> Callable[[Books, int], Author]:
    """Every slot under the best of the newest versions: no gap, and no version of an earlier beacon."""

    def author(books: Books, keys: int) -> Author:
        rng = random.Random(f"versions/{keys}")  # noqa: S311 - simulated
        slots, versions = [0] * keys, [0] * keys
        turns = itertools.cycle(range(keys))
        while True:
            for number in itertools.islice(turns, _TRIES):
                least = max(books.step - newest + 1, versions[number] - versions[number] % VERSIONS_PER_BEACON, 0)
                version = rng.randint(least, max(least, books.step))
                if books.offer(Offer(_key("cheat", number), slots[number], version, is_chosen=True)):
                    slots[number] += 1
                    versions[number] = max(version, versions[number])
            yield

    return author


def _rotating(books: Books, keys: int, *, earns: bool = False) -> Author:
    """Keys that skip slots until they are turned away, and then are thrown away; after they earned standing, or not."""
    names, slots = list(range(keys)), [0] * keys
    fresh, turns = itertools.count(keys), itertools.cycle(range(keys))
    while True:
        for number in itertools.islice(turns, _TRIES):
            peer, slot = _key("cheat", names[number]), slots[number]
            if earns and slot < _SKIPPED and not books.standings.contributor(peer).is_known:
                slots[number] += books.offer(Offer(peer, slot, books.step))
            elif books.offer(Offer(peer, slot + _SKIPPED, books.step, is_chosen=True)):
                slots[number] = slot + _SKIPPED + 1
            else:
                names[number], slots[number] = next(fresh), 0
        yield


def _earning(books: Books, keys: int) -> Author:
    return _rotating(books, keys, earns=True)


def _owner(books: Books, keys: int) -> Author:
    """One owner that works, and then lets its machines skip slots."""
    owner, slots = _key("cheat", "owner"), [0] * keys
    for first in range(0, _EARNED_BY_OWNER, GROUPS_PER_UPDATE):
        for slot in range(first, first + GROUPS_PER_UPDATE):
            books.offer(Offer(owner, slot, books.step))
        yield
    books.owners.update({_key("cheat", number): owner for number in range(keys)})
    turns = itertools.cycle(range(keys))
    while True:
        for number in itertools.islice(turns, _TRIES):
            offer = Offer(_key("cheat", number), slots[number] + _SKIPPED, books.step, is_chosen=True)
            slots[number] += books.offer(offer) * (_SKIPPED + 1)
        yield


_IDENTITY, _NEWCOMERS = IDENTITY_PERCENT / 100, NEWCOMER_PERCENT / 100
_BEST_SLOT = Wanted(slot=0, slots=_CHOICES)

ATTACKS: Mapping[tuple[str, int], Attack] = MappingProxyType(
    {
        (f"best of {newest} versions", keys): Attack(
            begin=_by_version(newest),
            cap=_IDENTITY if keys == 1 else _NEWCOMERS,
            wanted=Wanted(slot=0, versions=newest),
        )
        for newest in (2, 8, 64)
        for keys in (1, 100)
    }
    | {("rotating keys", keys): Attack(begin=_rotating, cap=_NEWCOMERS, wanted=_BEST_SLOT) for keys in (10, 100)}
    | {
        ("rotating keys that earn standing", keys): Attack(begin=_earning, cap=_NEWCOMERS, wanted=_BEST_SLOT)
        for keys in (10, 100)
    }
    | {("machines of one owner", 256): Attack(begin=_owner, cap=_IDENTITY, wanted=_BEST_SLOT)}
)
"""By name and number of keys."""

CHOICES = ("reward", "length")
HONEST = (10, 50)
UNCHECKED = (("best of 8 versions", 100), ("rotating keys", 10), ("rotating keys", 100))
"""Attacks that are shown without checks too, beside ten honest volunteers, by reward."""


def influence(name: str, keys: int, honest: int, *, checks: bool, updates: int) -> tuple[float, int]:
    """(Share of chosen groups in the training since the choosers began, honest groups that were voided)."""
    with tempfile.TemporaryDirectory(prefix="p2prl-choosers-") as folder:
        books = Books(Path(folder), checks=checks)
        people = [_key("honest", number) for number in range(honest)]
        slots, due = [0] * honest, [number / honest for number in range(honest)]
        author: Author | None = None
        began = 0
        while books.step < updates:
            with books.arrivals():
                for number, peer in enumerate(people):
                    due[number] += _SUPPLY * GROUPS_PER_UPDATE / honest
                    while due[number] >= 1.0:
                        due[number] -= 1.0
                        slots[number] += books.offer(Offer(peer, slots[number], books.step))
                if author is None and all(books.standings.contributor(peer).is_known for peer in people):
                    author, began = ATTACKS[name, keys].begin(books, keys), len(books.trained)
                if author is not None:
                    next(author)
            books.work()
            books.wait(UPDATE_S)
        books.close()
    trained = books.trained[began:]
    voided = sum(offer.peer in set(people) for offer in books.voided)
    return sum(offer.is_chosen for offer in trained) / max(1, len(trained)), voided


def chooser_row(
    name: str, keys: int, honest: int, choice: str, *, checks: bool, plan: ChooserPlan, out: Path
) -> ChooserRow:
    """One attack; warm starts are cached under `out`."""
    attack = ATTACKS[name, keys]
    share, voided = influence(name, keys, honest, checks=checks, updates=plan.updates)
    rounded = math.ceil(share * _SHARES - 1e-9) / _SHARES
    made = Wanted(
        slot=0, slots=attack.wanted.slots, versions=attack.wanted.versions, own_noise=not checks,
        by_length=choice == "length",
    )  # fmt: skip
    differences = _differences(made, rounded, plan, out)
    error = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    return ChooserRow(
        attack=name, keys=keys, honest=honest, checks=checks, choice=choice, influence=round(share, 4), cap=attack.cap,
        reward_difference=round(statistics.mean(differences), 4), standard_error=round(error, 4), voided=voided,
    )  # fmt: skip


@lru_cache(maxsize=64)
def _differences(made: Wanted, share: float, plan: ChooserPlan, out: Path) -> Sequence[float]:
    """Final reward with this share of chosen groups, less that of the honest run, of every seed."""
    if not share:
        return [0.0] * plan.seeds
    return [
        chosen - honest
        for chosen, honest in zip(_rewards(made, share, plan, out), _rewards(made, 0.0, plan, out), strict=True)
    ]


def _rewards(made: Wanted, share: float, plan: ChooserPlan, out: Path) -> list[float]:
    if not share:
        return _honest_rewards(plan, out)
    return [_trained(made, share, plan, out, seed) for seed in range(plan.seeds)]


@lru_cache(maxsize=4)
def _honest_rewards(plan: ChooserPlan, out: Path) -> list[float]:
    return [_trained(_BEST_SLOT, 0.0, plan, out, seed) for seed in range(plan.seeds)]


def _trained(made: Wanted, share: float, plan: ChooserPlan, out: Path, seed: int) -> float:
    """Final reward of a run in which this share of every batch was chosen."""
    environment = environment_by_name(_TASK)
    start = warm_start_of(environment, range(plan.seeds), out)[seed]
    training = ChosenTraining(environment, start, seed=seed, learning_rate=_RATE)
    size = GROUPS_PER_UPDATE
    for update in range(plan.updates):
        chosen = round(size * share * (update + 1)) - round(size * share * update)
        slots = range(
            _CHOSEN_SLOTS + update * size * _SKIPPED, _CHOSEN_SLOTS + (update + 1) * size * _SKIPPED, _SKIPPED
        )
        training.update(
            [made.at(slot) for slot in slots[:chosen]]
            + [Wanted(slot=update * size + number) for number in range(chosen, size)]
        )
    return training.reward(_EVALUATED)
