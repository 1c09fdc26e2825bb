"""Whether the run has moved on without this program: what peers of other wire versions mean for a worker. Pure.

Anybody can claim any version, so one stranger's claim is only news. When every peer that the join link names speaks
another version and nobody here speaks ours, there is no run to work for, and waiting would not help.
"""

from __future__ import annotations

from collections.abc import Sequence

from p2prl.errors import UpdateRequiredError
from p2prl.protocol import limits


class VersionCheck:
    """Peers met that speak another wire version."""

    def __init__(self, bootstrap: Sequence[str]) -> None:
        """`bootstrap` are the multiaddrs of the join link, each ending in a peer id."""
        self._bootstrap = {address.rpartition("/p2p/")[2] for address in bootstrap}
        self._foreign: dict[str, int] = {}

    def met(self, peer: str, version: int, *, neighbours: int) -> bool:
        """A peer speaks `version`; `neighbours` is how many speak ours. Whether a person should be told: once a peer.

        Raises `UpdateRequiredError` when there is nobody left to work with.
        """
        news = self._foreign.get(peer) != version
        self._foreign[peer] = version
        if self._bootstrap and self._bootstrap <= set(self._foreign) and not neighbours:
            if version > limits.WIRE_VERSION:
                remedy = "Bring this program up to date: pip install --upgrade p2prl"
            else:
                remedy = "Install the release that the run's operator names, or ask the operator to update."
            raise UpdateRequiredError(
                f"the peers of this run speak wire version {version}, this program {limits.WIRE_VERSION}", remedy=remedy
            )
        return news
