"""Peers of `--peers`, beside those of a join link or of a run's settings."""

from __future__ import annotations

from p2prl.cli.views.console import say
from p2prl.errors import UnreachableError
from p2prl.net.process.peer_list import is_on_web, listed_peers


def list_to_reread(source: str) -> str:
    """The web address of the list, which the network process reads again; empty for a file and without a list."""
    return source if is_on_web(source) else ""


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
