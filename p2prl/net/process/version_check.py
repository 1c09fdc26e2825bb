"""Wire version check: decide whether peers of other versions mean that this program is outdated. Pure.

Anybody can claim any version, so one stranger's claim causes only a warning. When every peer of the join link speaks
another version and no neighbor speaks ours, this worker cannot contribute to the run, and waiting would not help.
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

    def met(self, peer: str, version: int, *, neighbors: int) -> bool:
        """Note that a peer speaks `version` while `neighbors` peers speak ours. Returns whether to warn the user: once
        per peer and version.

        Raises `UpdateRequiredError` when no compatible peer is left.
        """
        is_new = self._foreign.get(peer) != version
        self._foreign[peer] = version
        if self._bootstrap and self._bootstrap <= set(self._foreign) and not neighbors:
            if version > limits.WIRE_VERSION:
                remedy = "Update your clone: git pull && pip install -c constraints.txt ."
            else:
                remedy = "Install the release that the run's operator names, or ask the operator to update."
            raise UpdateRequiredError(
                f"the peers of this run speak wire version {version}, this program {limits.WIRE_VERSION}", remedy=remedy
            )
        return is_new
