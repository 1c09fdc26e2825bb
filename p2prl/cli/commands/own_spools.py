"""Find a group of this machine in the spools of a run's worker folders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from p2prl.client.own_groups import OwnGroup, OwnGroups
from p2prl.config.own_runs import OwnRun
from p2prl.errors import ConfigError

LEAST_DIGITS = 4
"""Digits of a group's name: fewer fit too many groups to mean one."""


@dataclass(frozen=True, slots=True)
class FoundGroup:
    """A group, and the worker folder that sampled it."""

    run: OwnRun
    groups: OwnGroups
    group: OwnGroup


@contextmanager
def spools_of(runs: list[OwnRun]) -> Iterator[list[tuple[OwnRun, OwnGroups]]]:
    """The spools of a run's volunteers, closed at the end. Raises `ConfigError` when there is none."""
    with ExitStack() as opened:
        spools = []
        for run in runs:
            if run.spool.is_file():
                groups = OwnGroups(run.spool)
                opened.callback(groups.close)
                spools.append((run, groups))
        if not spools:
            raise ConfigError(
                f"no volunteer of this machine has sampled for {runs[0].manifest.name}",
                remedy="Start one with p2prl join LINK; p2prl status shows what has run here.",
            )
        yield spools


def find_group(spools: list[tuple[OwnRun, OwnGroups]], digits: str) -> FoundGroup:
    """The one group whose name begins with these digits. Raises `ConfigError` when none or several do."""
    prefix = digits.strip().lower()
    if len(prefix) < LEAST_DIGITS or not set(prefix) <= set("0123456789abcdef"):
        raise ConfigError(
            f"{digits!r} is not the beginning of a group's name",
            remedy=f"Give at least {LEAST_DIGITS} digits of a name that p2prl receipts list shows.",
        )
    found = [FoundGroup(run, groups, group) for run, groups in spools for group in groups.named(prefix, 2)]
    if len(found) != 1:
        what = "several groups have names" if found else "no group of this machine has a name"
        remedy = "Give more of its digits." if found else "Take a name that p2prl receipts list shows."
        raise ConfigError(f"{what} that begin{'' if found else 's'} with {prefix}", remedy=remedy)
    return found[0]
