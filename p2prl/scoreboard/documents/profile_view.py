"""API document of one contributor's profile: share of the run, badges, work over time, root of its receipts. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from p2prl.protocol.identity import peer_id_of
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.documents.api_views import require_run, run_document
from p2prl.scoreboard.documents.page_schema import Badge, ProfileDocument
from p2prl.scoreboard.documents.ranked_leaderboard import owner_of
from p2prl.scoreboard.documents.work_over_time import active_days, owner_activity
from p2prl.scoreboard.ledger.ledger_fold import BoardState
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.ledger.owner_totals import receipts_root
from p2prl.scoreboard.ledger.total_rows import Person

FIRST_STEPS = 10
"""Learner steps with receipts whose contributors were there from the start."""

_GROUP_BADGES = ((1, "First group"), (100, "Hundred"), (1_000, "Thousand"), (10_000, "Ten thousand"))
_SPOTLESS_GROUPS = 100
_REGULAR_DAYS = 7


def profile_document(snapshot: Snapshot, contributor_id: str) -> ProfileDocument | None:
    """The profile of a contributor by its peer id or that of one of its machines; None without a receipt of it."""
    _, board = require_run(snapshot)
    owner = owner_of(board, contributor_id)
    if owner is None:
        return None
    person = board.people[owner]
    tokens = run_document(snapshot).totals.verified_tokens
    days = active_days(board, owner)
    return ProfileDocument(
        id=peer_id_of(owner),
        handle=display_name(owner),
        share=round(person.tokens / tokens, 6) if tokens else 0.0,
        receipts=person.credited_groups + person.rejected_groups + person.expired_groups,
        receipts_root=receipts_root(board.machines[owner]).hex(),
        ledger_height=board.height,
        ledger_head=board.head.hex(),
        active_days=days,
        badges=list(_badges(board, owner, person, days)),
        activity=owner_activity(board, owner),
    )


def _badges(board: BoardState, owner: bytes, person: Person, days: int) -> Iterator[Badge]:
    groups = person.credited_groups
    reached = [(mark, title) for mark, title in _GROUP_BADGES if groups >= mark]
    if reached:
        mark, title = reached[-1]
        reason = "A first group was verified." if mark == 1 else f"{mark:,} groups were verified."
        yield Badge(code=f"groups-{mark}", title=title, reason=reason)
    if groups and person.first_step in sorted(board.steps)[:FIRST_STEPS]:
        reason = f"Worked in the run's first {FIRST_STEPS} steps."
        yield Badge(code="first-steps", title="From the start", reason=reason)
    if days >= _REGULAR_DAYS:
        yield Badge(code="regular", title="Regular", reason=f"Credited work on {days:,} days.")
    if groups >= _SPOTLESS_GROUPS and not person.rejected_groups:
        yield Badge(code="spotless", title="Spotless", reason=f"{groups:,} groups and none rejected.")
    if len(board.machines[owner]) > 1:
        count = len(board.machines[owner])
        yield Badge(code="machines", title="Machine park", reason=f"{count:,} machines work for one owner.")
    if owner in board.validators and board.validators[owner].tokens:
        yield Badge(code="validator", title="Validator", reason="Re-checked other people's work, with proof.")
