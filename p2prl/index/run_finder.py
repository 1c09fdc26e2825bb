"""Listed runs, asked of several indexes at a time: the newest true listing of each, held against its run's manifest.

An index may lie, and must not make runs that another one lists disappear: a false listing gives way to an older true
one, each index has its own threads and its own part of what is fetched, and a manifest that one does not give is asked
of the others that list the run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from p2prl.errors import ConfigError, P2PRLError, RemoteProtocolError, UnreachableError
from p2prl.index.index_client import Found, IndexClient
from p2prl.index.run_facts import checked_manifest
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest
from p2prl.protocol.listing import OpenedListing, run_id
from p2prl.protocol.manifests import RunManifest
from p2prl.tasks.wasm.runtime import library

MOST_NEW = 256
"""Runs whose manifests are asked of one index in one look, those that miss most first; the others wait for the next."""

FETCH_S = 10.0
"""For all manifests of a look: with the listings it takes no longer than a machine may stay at a run that has ended."""

_AT_ONCE = 4
"""Requests to one index."""

_MOST_KNOWN = 4_096


@dataclass(frozen=True, slots=True)
class Listed:
    """An answer of the indexes."""

    listings: list[tuple[OpenedListing, int]]
    """Each run's newest true listing, or its newest one, with the least crowd that an index gave it."""
    faults: dict[str, str]
    """By run: why its listing is refused, or what this program lacks for it."""
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
        given: dict[IndexClient, list[Found]] = {}
        pool = ThreadPoolExecutor(_AT_ONCE * len(clients))
        try:
            answers = [pool.submit(client.listings, now=now) for client in clients]
            for client, answer in zip(clients, answers, strict=True):
                try:
                    given[client] = answer.result()
                except P2PRLError as error:
                    silent[client.url] = str(error)
            if not given:
                raise UnreachableError(
                    "; ".join(silent.values()), remedy="Check the address, or name another index with --index."
                )
            wrong = self._fetch_new(pool, given)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)  # whatever hangs ends by its own deadline
        by_run: dict[Digest, list[Found]] = {}
        for found in given.values():
            for each in found:
                by_run.setdefault(each.opened.run, []).append(each)
        listings, faults = [], {}
        for run, found in by_run.items():
            found.sort(key=lambda each: -each.opened.listing.sent_ms)
            opened, fault = _newest_true(found, self._manifests.get(run) or wrong.get(run))
            listings.append((opened, min(each.crowd for each in found)))
            if fault:
                faults[run_id(run)] = fault
        return Listed(listings, faults, silent)

    def _fetch_new(self, pool: ThreadPoolExecutor, given: dict[IndexClient, list[Found]]) -> dict[Digest, bytes]:
        """Fetch manifests that are not here; returns what was given in place of some."""
        deadline, wrong = time.monotonic() + FETCH_S, dict[Digest, bytes]()
        sources: dict[Digest, list[IndexClient]] = {}
        for client, found in given.items():
            for each in found:
                sources.setdefault(each.opened.run, []).append(client)

        def fetch(client: IndexClient, wanted: list[OpenedListing]) -> None:
            for opened in wanted:
                if opened.run in self._manifests:
                    continue  # another index was faster
                if time.monotonic() >= deadline:
                    return
                try:
                    raw = client.manifest(opened)
                except UnreachableError:
                    continue
                if envelope_digest(raw) != opened.run:
                    wrong[opened.run] = raw
                elif len(self._manifests) < _MOST_KNOWN:
                    self._manifests[opened.run] = raw

        tasks = []
        for client, found in given.items():
            new = [each.opened for each in found if each.opened.run not in self._manifests]
            new.sort(key=lambda each: -(each.listing.missing or 0))
            # Indexes that list the same runs begin with different ones, so that each manifest is seldom given twice.
            firsts = {run for run, among in sources.items() if among[run[0] % len(among)] is client}
            new = [*(each for each in new if each.run in firsts), *(each for each in new if each.run not in firsts)]
            tasks += [pool.submit(fetch, client, new[:MOST_NEW][start::_AT_ONCE]) for start in range(_AT_ONCE)]
        wait(tasks, timeout=FETCH_S)
        return wrong


def _newest_true(found: Sequence[Found], manifest: bytes | None) -> tuple[OpenedListing, str]:
    """Of a run's listings, newest first, the first one that is its learner's and agrees with its manifest; else the
    first one; and why it is refused, or cannot be served here."""
    if manifest is None:
        return found[0].opened, "its manifest is not here yet, so that its listing cannot be checked"
    fault = ""
    for each in found:
        try:
            checked = checked_manifest(each.opened, manifest)
        except RemoteProtocolError as error:
            fault = fault or f"its listing is refused: {error}"
        else:
            return each.opened, _lacking(checked)
    return found[0].opened, fault


def _lacking(manifest: RunManifest) -> str:
    """What this program lacks to serve a run; empty for nothing. A worker would be started, and end with this."""
    if not manifest.modules:
        return ""
    try:
        library()
    except ConfigError as error:
        return f"{error} (to install it: {error.remedy})"
    return ""
