"""Relay watch: when a node's daemon should start again with other relay candidates, which are fixed at its start. Pure.

A home that nobody can dial is dialed through a relay. When every relay it was started with has gone, it keeps the links
that it opened, and no newcomer reaches it any more.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from p2prl.protocol.identity import PeerId
from p2prl.swarm.peers.meetings import is_direct_public
from p2prl.swarm.peers.peer_memory import LASTING_ROLES, LinkedRecord
from p2prl.swarm.peers.reachability import Reach

PATIENCE_S = 180.0
"""How long no relay may answer before others are taken: a machine restarts in less."""

LEAST_RUN_S = 900.0
"""How long a daemon runs at least: a start breaks all links for seconds."""

_DIALABLE = frozenset({Reach.DIRECT, Reach.MAPPED})
_ALONE = frozenset({Reach.LOCAL, Reach.CUT_OFF})


class RelayWatch:
    """The relay candidates of one daemon, and since when none of them has been of use."""

    def __init__(self, relays: Collection[PeerId], now: float) -> None:
        self._relays = frozenset(relays)
        self._began_at = now
        self._gone_since = math.inf

    def is_due(
        self,
        now: float,
        *,
        reach: Reach,
        addresses: Iterable[str],
        linked: Collection[LinkedRecord],
        is_busy: bool,
    ) -> bool:
        """Whether to start again now. `addresses` are this node's own; `is_busy` says that a download is under way.

        Only if there is something to gain: a linked peer in a lasting role, at a public address that its connection
        comes from, which is no candidate yet.
        """
        has_slot = any("p2p-circuit" in address.split("/") for address in addresses)
        is_served = has_slot or any(record.peer in self._relays for record in linked)
        if reach in _DIALABLE or reach in _ALONE or is_served:
            self._gone_since = math.inf
            return False
        self._gone_since = min(self._gone_since, now)
        is_long = now - self._gone_since >= PATIENCE_S and now - self._began_at >= LEAST_RUN_S
        return is_long and not is_busy and any(map(_may_relay, linked))


def _may_relay(record: LinkedRecord) -> bool:
    return record.role in LASTING_ROLES and any(
        is_direct_public(address) and record.is_proven(address) for address in record.addresses
    )
