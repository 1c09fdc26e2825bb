"""Exit codes of `p2prl`, which `docs/cli.md` explains."""

from __future__ import annotations

UNEXPECTED = 1
"""A bug, or a ledger or receipt that fails its check."""

USAGE = 2
"""No such command, option or argument, as the command line's library reports it."""

CONFIGURATION = 3
MACHINE = 4
"""This machine cannot do that."""

UPDATE_REQUIRED = 5
IDENTITY = 6
UNREACHABLE = 7

RUN_FINISHED = 9
"""A worker left because the learner ended the run."""

REFUSED_RUN = 10

WORK_REFUSED = 11
"""A volunteer left because the learner refuses its work, and its own replay does not say why."""

TEMPORARY = 75
"""The network or a card failed: EX_TEMPFAIL of sysexits.h."""

INTERRUPTED = 130
"""Stopped by Ctrl-C or SIGTERM (128 + SIGINT, as shells report it)."""

NOT_AGAIN = (USAGE, CONFIGURATION, MACHINE, UPDATE_REQUIRED, IDENTITY, RUN_FINISHED, REFUSED_RUN, WORK_REFUSED)
"""Codes that a new start would only repeat."""
