"""Peers of `--peers`, beside those of a join link or of a run's settings."""

from __future__ import annotations

from p2prl.cli.views.console import say
from p2prl.config.peer_list import listed_peers
from p2prl.errors import UnreachableError


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
