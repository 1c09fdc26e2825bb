"""Panel and progress line of a running validator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table

from p2prl.cli.views.quantities import version_text
from p2prl.plain_text import counted
from p2prl.protocol.identity import Identity
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.ledger.leaderboard_totals import ESCROW_VERDICTS

if TYPE_CHECKING:
    from p2prl.validator.service import Audit


def audit_line(audit: Audit) -> str:
    """A validator's state in one line."""
    return (
        (f"{audit.resting}  " if audit.resting else "")
        + f"{version_text(audit.version)}  seen {audit.seen:,}  replayed {audit.replayed:,}  passed {audit.passed:,}"
        f"  failed {audit.failed:,}  waiting {audit.waiting:,}"
        + (f"  checked {_checks(audit)}" if _checks(audit) else "")
        + (f"  rewards {_rewards(audit)}" if _rewards(audit) else "")
        + (f"  own ledger {own_ledger_text(audit.own_receipts, audit.own_tokens)}" if audit.own_receipts else "")
    )


def audit_panel(name: str, identity: Identity, audit: Audit) -> RenderableType:
    """A validator's state, redrawn in place."""
    table = Table.grid(padding=(0, 2))
    table.add_row(
        name, f"{display_name(identity.public_key)} ({identity.peer_id[-8:]})   {audit.resting or 'validating'}"
    )
    table.add_row("policy", version_text(audit.version))
    table.add_row("groups", f"{audit.seen:,} seen   {audit.waiting:,} waiting for their replay")
    table.add_row("verdicts", f"{audit.replayed:,} replayed   {audit.passed:,} passed   {audit.failed:,} failed")
    if checks := _checks(audit):
        table.add_row("checked", f"{checks} with the learner's own replay")
        table.add_row(
            "credit", f"the newest {ESCROW_VERDICTS} verdicts stay in escrow until more agree, or the run ends"
        )
    if rewards := _rewards(audit):
        table.add_row("rewards", f"{rewards} with the learner's receipts")
    if audit.own_receipts:
        table.add_row("ledger", f"{own_ledger_text(audit.own_receipts, audit.own_tokens)}, signed by this key")
    table.add_row("stop", "Ctrl-C stops after the current batch")
    return table


def own_ledger_text(receipts: int, tokens: int) -> str:
    """What a validator's own ledger holds."""
    return f"{counted(receipts, 'receipt')}, {counted(tokens, 'token')}"


def _checks(audit: Audit) -> str:
    """How many of the own verdicts the learner has checked; empty before the first."""
    if not audit.checks_agreed + audit.checks_contradicted + audit.checks_failed:
        return ""
    against = f", {audit.checks_contradicted:,} disagree" if audit.checks_contradicted else ""
    failed = f", {audit.checks_failed:,} NOT PROVEN" if audit.checks_failed else ""
    return f"{audit.checks_agreed:,} agree{against}{failed}"


def _rewards(audit: Audit) -> str:
    """How many rewards were compared; empty before the first."""
    if not audit.rewards_agreed + audit.rewards_disputed + audit.rewards_unclear:
        return ""
    unclear = f", {audit.rewards_unclear:,} unclear" if audit.rewards_unclear else ""
    disputed = f", {audit.rewards_disputed:,} DISAGREE" if audit.rewards_disputed else ""
    return f"{audit.rewards_agreed:,} agree{unclear}{disputed}"
