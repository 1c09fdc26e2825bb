"""Totals of people over runs: what each gave by the ledgers of runs that count here, and by others apart. Pure.

A run's learner signs its own ledger, so its owner could credit anybody with anything. Only the runs of owners whom the
index's operator named count in sums and ranks; those of others are kept beside them, as the word of their owners. A run
whose learner signed two histories counts nowhere.

Credit has one unit on every board: tokens, times the parameters of the run's model. Sums are integers, so that they do
not depend on the order of runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.scoreboard.ledger.credit import credit_of
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.total_rows import Person, Validator


class Contribution(NamedTuple):
    """What a ledger says of one person."""

    tokens: int = 0
    """Completion tokens in credited groups, less those forfeited."""
    rechecked_tokens: int = 0
    """Tokens of others that it replayed as a validator, with proof; they earn the same."""
    groups: int = 0
    """Credited groups."""
    first_ms: int | None = None
    """When the learner signed its first receipt; None for one who only validated."""
    last_ms: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RunPart:
    """A run's ledger as the totals take it."""

    run: Digest
    name: str
    owner: PeerId
    """Peer id of its learner's key."""
    parameters: int
    height: int
    """Entries of its ledger that are proven and counted."""
    is_finished: bool
    incident: str
    """Proof that its learner signed two histories, as a sentence; empty while there is none."""
    people: Mapping[bytes, Contribution]
    """By the owner's public key."""

    def counts_for(self, owners: frozenset[PeerId]) -> bool:
        """Whether it is part of sums and ranks where the runs of `owners` are."""
        return self.owner in owners and not self.incident

    def credit(self, given: Contribution) -> float:
        """Credit of a contribution to this run."""
        return credit_of(given.tokens + given.rechecked_tokens, self.parameters)


class GivenTo(NamedTuple):
    """A person's part in one run."""

    run: RunPart
    given: Contribution


class PersonTotals(NamedTuple):
    """Sums over the runs that count."""

    weight: int = 0
    """Tokens, re-checked ones too, each times the parameters of its run's model."""
    groups: int = 0
    tokens: int = 0
    rechecked_tokens: int = 0
    runs: int = 0
    first_ms: int | None = None
    last_ms: int | None = None

    @property
    def credit(self) -> float:
        """Credit, in the unit of every board."""
        return credit_of(self.weight, 1)

    def plus(self, run: RunPart, given: Contribution) -> PersonTotals:
        """The sums with one more run."""
        return PersonTotals(
            weight=self.weight + (given.tokens + given.rechecked_tokens) * run.parameters,
            groups=self.groups + given.groups,
            tokens=self.tokens + given.tokens,
            rechecked_tokens=self.rechecked_tokens + given.rechecked_tokens,
            runs=self.runs + 1,
            first_ms=min(_known(self.first_ms, given.first_ms), default=None),
            last_ms=max(_known(self.last_ms, given.last_ms), default=None),
        )


NOTHING = PersonTotals()


@dataclass(frozen=True, slots=True, eq=False)
class PeopleTotals:
    """The people of some runs at one moment. Its mappings never change."""

    runs: tuple[RunPart, ...]
    """All of them, those that count first."""
    owners: frozenset[PeerId]
    """Whose runs count."""
    people: Mapping[bytes, PersonTotals]
    """By the owner's public key: everybody in the runs that count."""
    ranked: Sequence[bytes]
    """The keys of those with credit, most credit first; equal credit by key."""
    ranks: Mapping[bytes, int]

    def parts(self, key: bytes) -> tuple[list[GivenTo], list[GivenTo]]:
        """What a person gave to the runs that count and to others, most credit first."""
        found = [GivenTo(run, given) for run in self.runs if (given := run.people.get(key)) is not None]
        found.sort(key=lambda part: (-part.run.credit(part.given), part.run.run))
        counted = [part for part in found if part.run.counts_for(self.owners)]
        return counted, [part for part in found if not part.run.counts_for(self.owners)]


def people_totals(runs: Iterable[RunPart], owners: frozenset[PeerId]) -> PeopleTotals:
    """The totals over runs; those of `owners` count."""
    every = sorted(runs, key=lambda run: (run.owner not in owners, run.name, run.run))
    sums: dict[bytes, PersonTotals] = {}
    for run in every:
        if not run.counts_for(owners):
            continue
        for key, given in run.people.items():
            sums[key] = sums.get(key, NOTHING).plus(run, given)
    ranked = sorted((key for key, total in sums.items() if total.weight), key=lambda key: (-sums[key].weight, key))
    return PeopleTotals(
        runs=tuple(every),
        owners=owners,
        people=MappingProxyType(sums),
        ranked=tuple(ranked),
        ranks=MappingProxyType({key: place for place, key in enumerate(ranked, 1)}),
    )


def contributions(board: BoardState) -> dict[bytes, Contribution]:
    """Everybody of a run's board."""
    found = {key: _of_person(person) for key, person in board.people.items()}
    for key, validator in board.validators.items():
        found[key] = _with_checks(found.get(key, Contribution()), validator)
    return found


def _of_person(person: Person) -> Contribution:
    return Contribution(
        tokens=person.tokens, groups=person.credited_groups, first_ms=person.first_ms, last_ms=person.last_ms
    )


def _with_checks(given: Contribution, validator: Validator) -> Contribution:
    """Its times are those of receipts: a verdict has its validator's own clock."""
    return given._replace(rechecked_tokens=validator.tokens)


def _known(*times: int | None) -> list[int]:
    return [each for each in times if each is not None]
