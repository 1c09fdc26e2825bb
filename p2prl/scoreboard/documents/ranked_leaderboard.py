"""API documents of the leaderboard: order, search, pages and single contributors. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from p2prl.errors import IdentityError
from p2prl.protocol.identity import PeerId, peer_id_of, public_key_of
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.documents.api_schema import (
    ContributorDocument,
    LeaderboardDocument,
    MachineDocument,
    PassRate,
    ValidatorDocument,
)
from p2prl.scoreboard.documents.api_views import require_run, rounded
from p2prl.scoreboard.documents.page_cursor import ALL, cursor_of, place_of
from p2prl.scoreboard.documents.team_view import team_of
from p2prl.scoreboard.documents.work_over_time import window_work
from p2prl.scoreboard.ledger.hourly_totals import NO_WORK, Work
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.owner_totals import receipts_root
from p2prl.scoreboard.ledger.total_rows import MICRO, Person, Validator, wilson_interval
from p2prl.time_text import time_text

_MACHINES_LISTED = 16
"""Machines of a contributor in a list of contributors: a page of fifty rows stays small."""

_CACHED_KEYS = 100_000
"""Public keys whose names are cached: every request sorts the same keys, and base 58 is slow in Python."""

_peer_id = lru_cache(maxsize=_CACHED_KEYS)(peer_id_of)


_Ranked = tuple[int, tuple[int, str, bytes]]
"""A row's place: rank, then (-tokens, peer id, public key)."""


@lru_cache(maxsize=8)
def _ranked(board: BoardState, by: str, window: str) -> Sequence[_Ranked]:
    """The whole table in order. Cached per table of the newest states."""
    rows: Mapping[bytes, Person] | Mapping[bytes, Validator] | Mapping[bytes, Work]
    people = board.people if window == ALL else window_work(board, window)
    rows = board.validators if by == "validators" else people
    return tuple(enumerate(sorted((-row.tokens, _peer_id(key), key) for key, row in rows.items()), 1))


@lru_cache(maxsize=4)
def _ranks(board: BoardState) -> Mapping[bytes, int]:
    """Rank of each owner among all contributors."""
    return {key: rank for rank, (_, _, key) in _ranked(board, "people", ALL)}


@lru_cache(maxsize=4)
def _owners(board: BoardState) -> Mapping[bytes, bytes]:
    """Owner of each machine; of one that changed hands, the first that has receipts of it."""
    owners: dict[bytes, bytes] = {}
    for owner, machines in board.machines.items():
        for machine in machines:
            owners.setdefault(machine, owner)
    return owners


@lru_cache(maxsize=_CACHED_KEYS)
def _searchable(public_key: bytes) -> tuple[str, str]:
    """Display name and peer id in lower case."""
    return display_name(public_key).lower(), _peer_id(public_key).lower()


@lru_cache(maxsize=_CACHED_KEYS)
def _text_of(public_key: bytes) -> str:
    """Everything that a search may find of a key, as one text."""
    return "\n".join(_searchable(public_key))


class _TableText(NamedTuple):
    """All that a search may find in a table as one text, which is searched in a tenth of the time of its rows."""

    text: str
    starts: Sequence[int]
    """Where the text of each row begins, in the table's order."""

    def rows_with(self, word: str) -> Iterator[int]:
        """The rows whose text contains a word without white space, in order."""
        at = self.text.find(word)
        while at >= 0:
            row = bisect_right(self.starts, at) - 1
            yield row
            at = self.text.find(word, self.starts[row + 1]) if row + 1 < len(self.starts) else -1


@lru_cache(maxsize=8)
def _table_text(board: BoardState, by: str, window: str) -> _TableText:
    """The text of a table, with that of each row's machines: for the quick test before the exact one."""
    machines = board.machines if by == "people" else board.validator_machines
    texts = [
        _text_of(key) if len(machines.get(key, ())) < 2 and key in machines.get(key, (key,))
        else "\n".join(map(_text_of, {key, *machines[key]}))
        for _, (_, _, key) in _ranked(board, by, window)
    ]  # fmt: skip
    return _TableText("\n".join(texts), list(accumulate((len(text) + 1 for text in texts[:-1]), initial=0)))


@lru_cache(maxsize=64)
def _found(board: BoardState, by: str, window: str, words: tuple[str, ...]) -> Sequence[_Ranked]:
    """The rows that a search matches. The longest word leaves the fewest to test."""
    table = _ranked(board, by, window)
    rows = _table_text(board, by, window).rows_with(max(words, key=len)) if table else ()
    return [table[row] for row in rows if _row_matches(board, by, table[row][1][2], list(words))]


def leaderboard_document(
    snapshot: Snapshot, *, by: str, limit: int, cursor: str | None = None, query: str = "", window: str = ALL
) -> LeaderboardDocument:
    """A page of `people` or `validators`, most credit first, equal credit by peer id.

    With a `window`, only the people with credited work in it, ranked by that work. Validators have no window.

    With a `query`, only the rows it matches, each with its rank in the whole table; `total` counts the matches.
    Raises `ConfigError` for a cursor that this API did not issue.
    """
    _, board = require_run(snapshot)
    window = window if by == "people" else ALL
    words = tuple(query.lower().split())
    ranked = _found(board, by, window, words) if words else _ranked(board, by, window)
    start = 0
    if cursor:
        last = place_of(cursor)
        start = next((i for i, (_, row) in enumerate(ranked) if row[:2] > last), len(ranked))
    page = ranked[start : start + limit]
    over, most = snapshot.finished, _MACHINES_LISTED
    people = (
        [_contributor(board, (rank, window), key, most, over) for rank, (_, _, key) in page] if by == "people" else []
    )
    validators = [_validator(board, rank, key, over) for rank, (_, _, key) in page] if by == "validators" else []
    more = start + limit < len(ranked)
    next_cursor = cursor_of(page[-1][1]) if more else None
    return LeaderboardDocument(
        by=by, window=window, total=len(ranked), people=people, validators=validators, next_cursor=next_cursor
    )


def contributor_document(snapshot: Snapshot, contributor_id: str) -> ContributorDocument | None:
    """One contributor by its peer id or that of one of its machines; None when the ledger has no receipt of it."""
    _, board = require_run(snapshot)
    key = owner_of(board, contributor_id)
    if key is None:
        return None
    return _contributor(board, (_ranks(board)[key], ALL), key, len(board.machines[key]), snapshot.finished)


def rank_of(snapshot: Snapshot, contributor_id: str) -> int | None:
    """Rank of an owner by its peer id; None when no receipt counts for it."""
    _, board = require_run(snapshot)
    return _ranks(board).get(public_key_of(PeerId(contributor_id)))


def owner_of(board: BoardState, contributor_id: str) -> bytes | None:
    """The owner with this peer id, or of the machine with this peer id; None when the ledger has no receipt of it."""
    try:
        key = public_key_of(PeerId(contributor_id))
    except IdentityError:
        return None
    return key if key in board.people else _owners(board).get(key)


def _row_matches(board: BoardState, by: str, key: bytes, words: list[str]) -> bool:
    """Whether a search finds a row: by the owner's key, or by that of one of its machines."""
    machines = board.machines if by == "people" else board.validator_machines
    keys = {key, *machines.get(key, ())}
    return any(key_matches(each, words) for each in keys)


def key_matches(public_key: bytes, words: list[str]) -> bool:
    """Whether every word is in the display name, or begins or ends the peer id (the page shows its end)."""
    name, peer_id = _searchable(public_key)
    return all(word in name or peer_id.startswith(word) or peer_id.endswith(word) for word in words)


def _contributor(
    board: BoardState, place: tuple[int, str], key: bytes, most_machines: int, finished: bool
) -> ContributorDocument:
    """A row; `place` is its rank and the window in which it has this rank."""
    person, machines = board.people[key], board.machines[key]
    rank, window = place
    in_window = _all_work(person) if window == ALL else window_work(board, window).get(key, NO_WORK)
    own_only, team = list(machines) == [key], team_of(board, key)
    checked = person.credited_groups + person.rejected_groups
    low, high = wilson_interval(person.credited_groups, checked)
    return ContributorDocument(
        rank=rank,
        id=_peer_id(key),
        handle=display_name(key),
        team=team.name if team else "",
        team_id=_peer_id(team.team) if team else None,
        credit=board.credit(person.tokens),
        window_credit=board.credit(in_window.tokens),
        window_groups=in_window.groups,
        window_tokens=in_window.tokens,
        verified_groups=person.verified_groups,
        sampled_groups=person.sampled_groups,
        verified_tokens=person.tokens,
        escrow_tokens=0 if finished else person.escrow_tokens,
        forfeited_tokens=person.forfeited_tokens,
        completions=person.completions,
        mean_reward=rounded(person.reward_micros / person.completions / MICRO) if person.completions else None,
        pass_rate=PassRate(
            passed=person.credited_groups,
            checked=checked,
            rate=rounded(person.credited_groups / checked) if checked else None,
            low=round(low, 6),
            high=round(high, 6),
        ),
        rejected_groups=person.rejected_groups,
        rejected_by_reason=dict(person.rejected),
        expired_groups=person.expired_groups,
        expired_by_reason=dict(person.expired),
        first_step=person.first_step,
        last_step=person.last_step,
        last_receipt_at=time_text(person.last_ms),
        receipts_root=receipts_root(machines).hex(),
        machine_count=len(machines),
        machines=[] if own_only else _machines(board, machines)[:most_machines],
    )


def _all_work(person: Person) -> Work:
    return Work(person.tokens, person.credited_groups)


def _machines(board: BoardState, machines: Mapping[bytes, Person]) -> list[MachineDocument]:
    """A contributor's machines, most credit first."""
    return [
        MachineDocument(
            id=_peer_id(key),
            handle=display_name(key),
            credit=board.credit(part.tokens),
            verified_groups=part.verified_groups,
            sampled_groups=part.sampled_groups,
            verified_tokens=part.tokens,
            rejected_groups=part.rejected_groups,
            last_step=part.last_step,
            last_receipt_at=time_text(part.last_ms),
        )
        for key, part in sorted(machines.items(), key=lambda item: (-item[1].tokens, _peer_id(item[0])))
    ]


def _validator(board: BoardState, rank: int, key: bytes, finished: bool) -> ValidatorDocument:
    validator, machines = board.validators[key], list(board.validator_machines[key])
    return ValidatorDocument(
        rank=rank,
        id=_peer_id(key),
        handle=display_name(key),
        credit=board.credit(validator.tokens),
        passed_groups=validator.passed_groups,
        failed_groups=validator.failed_groups,
        disputed_groups=validator.disputed_groups,
        failed_checks=validator.failed_checks,
        upheld_disputes=validator.upheld_disputes,
        rechecked_tokens=validator.tokens,
        escrow_tokens=0 if finished else validator.escrow_tokens,
        last_verdict_at=time_text(validator.last_ms),
        machine_count=len(machines),
        machines=[] if machines == [key] else sorted(str(_peer_id(each)) for each in machines)[:_MACHINES_LISTED],
    )
