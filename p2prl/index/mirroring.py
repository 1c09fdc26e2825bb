"""Mirroring: an index reads the listings of others, and keeps those of them that it would have taken itself.

Each mirrored index has a thread of its own, so that one which hangs does not keep those of another from being renewed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from p2prl.errors import P2PRLError
from p2prl.index.index_client import Found, IndexClient
from p2prl.index.index_state import IndexState
from p2prl.index.listing_table import ListingRefusedError, ManifestWantedError, mirror_source

MIRROR_S = 20.0
"""Time between two looks at a mirrored index: a learner renews a listing every minute."""

NEW_AT_ONCE = 64
"""Runs whose manifests are fetched in one look; the rest waits for the next."""


def mirror_once(state: IndexState, client: IndexClient, *, now: float) -> int:
    """Read the listings of one index, and take what is new. Returns how many were taken."""
    held = {row.kept.opened.raw for row in state.rows()}
    taken = fetched = 0
    for found in client.listings(now=now):
        if found.opened.raw in held:
            continue
        try:
            state.offer(found.opened.raw, b"", mirror_source(client.url))
        except ManifestWantedError:
            if fetched == NEW_AT_ONCE:
                continue
            fetched += 1
            taken += _take_new(state, client, found)
        except ListingRefusedError:
            continue
        else:
            taken += 1
    return taken


def _take_new(state: IndexState, client: IndexClient, found: Found) -> bool:
    try:
        state.offer(found.opened.raw, client.manifest(found.opened), mirror_source(client.url))
    except (P2PRLError, ListingRefusedError, ManifestWantedError):
        return False
    return True


class Mirroring:
    """Mirrors while the index runs."""

    def __init__(self, state: IndexState, urls: Sequence[str], now: Callable[[], float]) -> None:
        self._state = state
        self._now = now
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(IndexClient(url),), daemon=True) for url in urls]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End; a look in progress ends by its own deadline."""
        self._ended.set()

    def _run(self, client: IndexClient) -> None:
        while True:
            try:
                mirror_once(self._state, client, now=self._now())
                self._state.mirrors[client.url] = "ok"
            except P2PRLError as error:
                self._state.mirrors[client.url] = str(error)
            if self._ended.wait(MIRROR_S):
                return
