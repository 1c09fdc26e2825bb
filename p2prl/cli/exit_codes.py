"""Exit codes that are not errors; those of errors are in `p2prl.errors`. `docs/cli.md` lists them all."""

from __future__ import annotations

RUN_FINISHED = 9
"""A worker left because the learner ended the run: a supervisor should not start it again."""

INTERRUPTED = 130
"""Stopped by Ctrl-C or SIGTERM (128 + SIGINT, as shells report it)."""
