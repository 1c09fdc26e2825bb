"""Ledger pages between neighbours: whom to ask, how often to answer, how much one page holds.

The entries themselves are the owner's: a learner reads them from its journal, a board from its copy, and whoever gets
them follows the chain itself. Pure: the owner drains `outbox`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from p2prl.protocol import limits
from p2prl.protocol.identity import PeerId
from p2prl.protocol.link_messages import LedgerPage, LedgerQuery
from p2prl.protocol.wire_codec import Wire
from p2prl.swarm.ports import Randomness
from p2prl.swarm.random_choice import draw_one

_QUERIES_AT_ONCE = 16
"""Queries a neighbour may save up: questions spaced evenly by their sender arrive in bursts behind weight chunks."""

_REMEMBERED_ASKERS = 4_096
"""Peers whose queries are counted, those that left included: coming back must not buy a fresh allowance."""

_PAGE_OVERHEAD_BYTES = 64
_ENTRY_OVERHEAD_BYTES = 5
"""msgpack's headers of a ledger page and of each entry in it, at most."""


class LedgerPages:
    """One node's questions and answers about the ledger."""

    def __init__(self, rng: Randomness) -> None:
        self._rng = rng
        self._allowances: OrderedDict[PeerId, tuple[float, float]] = OrderedDict()
        """Peer → (queries it may still make, as of when). The one heard last stands last."""
        self.outbox: list[tuple[PeerId, Wire]] = []

    def ask(self, heights: Mapping[PeerId, int], from_height: int) -> None:
        """Ask a neighbour that says it holds more than `from_height` entries for what follows.

        Any of them, at random: the one that claims most may be lying, and would then be asked for ever.
        """
        ahead = [peer for peer, height in heights.items() if height > from_height]
        if ahead:
            self.outbox.append((draw_one(ahead, self._rng), LedgerQuery(from_height)))

    def may_ask(self, peer: PeerId, now: float) -> bool:
        """Count a query of a neighbour's; False when it is one too many, and goes unanswered.

        It is no fault: a person's second board behind one peer may ask twice as often. The asker asks again.
        """
        left, since = self._allowances.pop(peer, (float(_QUERIES_AT_ONCE), now))
        left = min(float(_QUERIES_AT_ONCE), left + max(0.0, now - since) * limits.MAX_LEDGER_QUERIES_PER_S)
        granted = left >= 1
        self._allowances[peer] = (left - granted, now)
        if len(self._allowances) > _REMEMBERED_ASKERS:
            self._allowances.popitem(last=False)
        return granted

    def answer(self, peer: PeerId, from_height: int, entries: Sequence[bytes]) -> None:
        """Send as many of these entries as one message may hold."""
        room = limits.MAX_CONTROL_FRAME_BYTES - _PAGE_OVERHEAD_BYTES
        page: list[bytes] = []
        for entry in entries[: limits.MAX_LEDGER_ENTRIES_PER_REPLY]:
            room -= len(entry) + _ENTRY_OVERHEAD_BYTES
            if room < 0:
                break
            page.append(entry)
        self.outbox.append((peer, LedgerPage(from_height, tuple(page))))
