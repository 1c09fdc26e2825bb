"""Options on the reach of a machine, `--public`, `--no-port-mapping` and `--lan`, and the peers of `--peers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p2prl.cli.views.console import say
from p2prl.errors import UnreachableError
from p2prl.net.process.peer_list import is_on_web, listed_peers

if TYPE_CHECKING:
    from p2prl.net.process.network_config import ReachOptions


def reach_options(peers: str, *, public: bool, no_port_mapping: bool, lan: bool = False) -> ReachOptions:
    """The options for the network process, which reads the list of `--peers` again when that is on the web."""
    from p2prl.net.process.network_config import ReachOptions

    reread = peers if is_on_web(peers) else ""
    return ReachOptions(is_public=public, maps_ports=not no_port_mapping, on_lan=lan, peers_list=reread)


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
