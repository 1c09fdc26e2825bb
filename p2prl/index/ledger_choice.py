"""Choice of the listed runs whose ledgers an index reads, and its limits. Pure.

The runs that count come first and have large limits, since the operator chose their owners. Of others a few are read,
within limits that a stranger cannot use up for more than its share: networks and boards take turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from p2prl.index.followed_run import RunLimits
from p2prl.index.listing_table import Row
from p2prl.protocol.identity import PeerId

_COUNTED = RunLimits(look_bytes=16 << 20, run_bytes=64 << 20)
_OTHER = RunLimits(look_bytes=1 << 20, run_bytes=512 << 10)


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgerLimits:
    """Ledgers that an index reads and keeps."""

    counted_runs: int = 64
    """Runs of named owners whose boards are asked at a time. Ledgers of earlier ones are kept."""
    other_runs: int = 8
    """Other runs, listed now or kept: totals of receipts that are each of somebody new take 170 MB of memory."""
    counted: RunLimits = _COUNTED
    """For a run that counts: some 600,000 receipts. Totals of a few contributors take eight times as much memory as the
    ledger has bytes, and 39 times where every receipt is of somebody new."""
    other: RunLimits = _OTHER
    """For any other: some 4,500 receipts. A longer one is not read on."""
    disk_bytes: int = 4 << 30
    """Files of all ledgers; none grows beyond that."""

    def of(self, *, counts: bool) -> RunLimits:
        """The limits of a run."""
        return self.counted if counts else self.other


def chosen_rows(rows: Iterable[Row], owners: frozenset[PeerId], limits: LedgerLimits) -> list[Row]:
    """The listings whose boards are asked. `rows` begin with those that have been listed longest, which come first."""
    named = [row for row in rows if row.kept.opened.listing.board]
    counted = [row for row in named if row.kept.opened.owner in owners]
    by_source, by_host, places = Counter[str](), Counter[str](), list[tuple[int, Row]]()
    for row in named:
        if row.kept.opened.owner in owners:
            continue
        source, host = row.kept.source, urlsplit(row.kept.opened.listing.board).hostname or ""
        by_source[source] += 1
        by_host[host] += 1
        places.append((max(by_source[source], by_host[host]), row))
    places.sort(key=lambda place: place[0])
    return [*counted[: limits.counted_runs], *(row for _, row in places[: limits.other_runs])]
