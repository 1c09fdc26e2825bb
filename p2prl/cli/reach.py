"""Reach of a machine: its options, the peers of `--peers`, and the line on what others see. Light: it is said first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2prl.cli.views.console import say
from p2prl.errors import UnreachableError
from p2prl.net.process.peer_list import listed_peers

if TYPE_CHECKING:
    pass


def further_peers(source: str) -> tuple[str, ...]:
    """Addresses in the list; none without a list, and none, with a notice, when its server does not answer.

    Raises `ConfigError` for a list that is wrong.
    """
    if not source:
        return ()
    try:
        return listed_peers(source)
    except UnreachableError as error:
        say(f"{error}; continuing without this list")
        return ()


def visibility_line(
    *, is_seeder: bool = False, is_public: bool = False, on_lan: bool = False, was_listed: bool = False
) -> str:
    """The line. A seeder, and a worker with `--public`, is listed; others are not, boards among them.

    `was_listed` says that a worker with the same key has been: nobody can take back what was copied then.
    """
    others = "every other peer of the run"
    seeing = f"{others} and the machines on this local network (--lan)" if on_lan else others
    seen = f"The learner{',' if on_lan else ' and'} {seeing} can see this machine's IP address beside its id"
    if is_seeder or is_public:
        reason = "a seeder is public" if is_seeder else "--public"
        return f"{seen}, and everybody else may ({reason}): join links and the pages that show them name both."
    if was_listed:
        return f"{seen}; no new link, page or ledger joins the two, but those made while it was listed do."
    return f"{seen}; no link, page or ledger joins the two."
