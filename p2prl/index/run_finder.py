"""Listed runs, asked of several indexes at a time: the newest listing of each, held against its run's manifest."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from p2prl.errors import P2PRLError, RemoteProtocolError, UnreachableError
from p2prl.index.index_client import Found, IndexClient
from p2prl.index.run_facts import checked_manifest
from p2prl.protocol.digests import Digest
from p2prl.protocol.listing import OpenedListing, run_id

MOST_NEW = 256
"""Runs whose manifests are fetched in one look, those that miss most first; the others wait for the next look."""

_AT_ONCE = 8
_MOST_KNOWN = 4_096


@dataclass(frozen=True, slots=True)
class Listed:
    """An answer of the indexes."""

    listings: list[tuple[OpenedListing, int]]
    """Each run's newest listing, with the least crowd that an index gave it."""
    faults: dict[str, str]
    """By run: why its listing is refused."""
    silent: dict[str, str]
    """Indexes that gave no answer, and why."""


@dataclass(slots=True)
class RunFinder:
    """Asks indexes. It remembers manifests, so that each is fetched once."""

    urls: Sequence[str]
    _manifests: dict[Digest, bytes] = field(default_factory=dict)

    def look(self, *, now: float) -> Listed:
        """The listings that hold at `now`. Raises `UnreachableError` when no index answers."""
        clients = [IndexClient(url) for url in self.urls]
        silent: dict[str, str] = {}
        newest: dict[Digest, tuple[Found, IndexClient]] = {}
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = [pool.submit(client.listings, now=now) for client in clients]
            for client, answer in zip(clients, answers, strict=True):
                try:
                    found = answer.result()
                except P2PRLError as error:
                    silent[client.url] = str(error)
                    continue
                for each in found:
                    _keep(newest, each, client)
            if len(silent) == len(clients):
                raise UnreachableError(
                    "; ".join(silent.values()), remedy="Check the address, or name another index with --index."
                )
            wanted = [pair for run, pair in newest.items() if run not in self._manifests]
            wanted.sort(key=lambda pair: -(pair[0].opened.listing.missing or 0))
            list(pool.map(self._fetch, wanted[:MOST_NEW]))
        faults = {}
        for found_, _ in newest.values():
            if fault := self._fault(found_.opened):
                faults[run_id(found_.opened.run)] = fault
        listings = [(found_.opened, found_.crowd) for found_, _ in newest.values()]
        return Listed(listings, faults, silent)

    def _fetch(self, pair: tuple[Found, IndexClient]) -> None:
        found, client = pair
        try:
            raw = client.manifest(found.opened)
        except UnreachableError:
            return
        if len(self._manifests) < _MOST_KNOWN:
            self._manifests[found.opened.run] = raw

    def _fault(self, opened: OpenedListing) -> str:
        raw = self._manifests.get(opened.run)
        if raw is None:
            return "its manifest is not here yet, so that its listing cannot be checked"
        try:
            checked_manifest(opened, raw)
        except RemoteProtocolError as error:
            del self._manifests[opened.run]  # another index may have the right one
            return f"its listing is refused: {error}"
        return ""


def _keep(newest: dict[Digest, tuple[Found, IndexClient]], each: Found, client: IndexClient) -> None:
    """Keep the newest listing of a run, with the least crowd."""
    before = newest.get(each.opened.run)
    if before is None:
        newest[each.opened.run] = (each, client)
        return
    crowd = min(before[0].crowd, each.crowd)
    newer = each.opened.listing.sent_ms > before[0].opened.listing.sent_ms
    opened, source = (each.opened, client) if newer else (before[0].opened, before[1])
    newest[each.opened.run] = (Found(opened, crowd), source)
