"""Wire version check: decide whether peers of other versions mean that this program is outdated. Pure.

Anybody can claim any version, so one stranger's claim causes only a warning. When every peer of the join link speaks
another version and no neighbor speaks ours, this worker cannot contribute to the run, and waiting would not help.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from p2prl.errors import UpdateRequiredError
from p2prl.protocol import wire_version

_REMEMBERED = 1_024
"""Peers of other versions that are remembered, besides those of the join link: keys are free."""


class VersionCheck:
    """Peers met that speak another wire version."""

    def __init__(self, bootstrap: Sequence[str], how_to_update: Callable[[], str]) -> None:
        """`bootstrap` are the multiaddrs of the join link, each ending in a peer id. `how_to_update` is asked for the
        shell command that updates this program.
        """
        self._how_to_update = how_to_update
        self._bootstrap = {address.rpartition("/p2p/")[2] for address in bootstrap}
        self._foreign: OrderedDict[str, int] = OrderedDict()
        self._link_is_foreign: set[str] = set()

    def met(self, peer: str, version: int, *, neighbors: int) -> tuple[str, str] | None:
        """Note that a peer speaks `version` while `neighbors` peers speak ours.

        Returns what to tell the user and a remedy, once per peer and version; else None. Raises `UpdateRequiredError`
        when no compatible peer is left.
        """
        is_new = self._foreign.get(peer) != version
        self._foreign[peer] = version
        if len(self._foreign) > _REMEMBERED:
            self._foreign.popitem(last=False)
        self._link_is_foreign |= self._bootstrap & {peer}
        ours, is_newer = wire_version.WIRE_VERSION, wire_version.is_newer(version)
        if self._bootstrap and self._bootstrap == self._link_is_foreign and not neighbors:
            asked = "Install the release that the run's operator names, or ask the operator to update."
            raise UpdateRequiredError(
                f"the peers of this run speak wire version {version}, this program {ours}",
                remedy=f"Update this program: {self._how_to_update()}" if is_newer else asked,
            )
        if not is_new:
            return None
        if is_newer:
            hint = f"If the run has moved on, update this program: {self._how_to_update()}"
            return f"a peer of this run speaks wire version {version}, this program {ours}", hint
        return f"a peer of this run speaks wire version {version}, older than this program's {ours}", ""
