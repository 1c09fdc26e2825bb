"""Findings of `p2prl doctor` as lines: outcome first, and for each that is not ok, its cause and what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from p2prl.plain_text import counted

_COLUMN = 16


class Shown(Protocol):
    """A finding, as its view needs it."""

    @property
    def name(self) -> str: ...
    @property
    def outcome(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def cause(self) -> str: ...
    @property
    def fix(self) -> str: ...


def finding_lines(found: Sequence[Shown]) -> list[str]:
    """One line for each finding, and two more for one with a cause."""
    lines = []
    for finding in found:
        lines.append(f"  {finding.outcome:<5} {finding.name:<9} {finding.text}")
        lines += [f"{'':<{_COLUMN}} Why: {finding.cause}"] if finding.cause else []
        lines += [f"{'':<{_COLUMN}} Try: {finding.fix}"] if finding.fix else []
    return lines


def summary_line(failures: int, warnings: int) -> str:
    """The end of the list."""
    if not failures and not warnings:
        return "All is well. This machine can join a run."
    found = [counted(count, word) for count, word in ((failures, "failure"), (warnings, "warning")) if count]
    hint = "To ask for help, show what p2prl doctor --bundle FILE writes: no keys, no addresses."
    return f"{' and '.join(found)}. {hint}"
