"""Listing of a run while its learner runs: signed every minute, sent on a thread of its own, withdrawn at the end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from p2prl.clock import Clock
from p2prl.config.run_folder import Folder
from p2prl.errors import P2PRLError
from p2prl.index.index_client import IndexClient
from p2prl.index.run_facts import listing_of
from p2prl.protocol.join_link import parse_link
from p2prl.protocol.listing import MAX_VOLUNTEERS, State, sign_listing
from p2prl.protocol.listing_life import RENEW_S

SOON_S = 10.0
"""The first listings follow each other faster: volunteers that have just come are not asked for again."""

_SOON = 6

PUBLIC_TEXT = (
    "Public from now on, at {urls}: this run's name, goal, content note, base model and size, what it takes of a "
    "volunteer, how many there are and how many it misses, its learner's key, and the join link, which names this "
    "learner's address{board}. Anybody may copy them. The listing ends with this learner; without --list and list "
    "under [network] nothing is listed."
)


def missing_volunteers(metrics: Mapping[str, object]) -> int | None:
    """Further volunteers, as fast as those there are, with which the learner would always be at work, by the forecast
    in a line of its metrics; as many as stand by below zero; None without a forecast."""
    utilization, counted = metrics.get("plan/predicted_utilisation"), metrics.get("plan/volunteers")
    standby = metrics.get("plan/standby", 0)
    if not isinstance(utilization, int | float) or not isinstance(counted, int | float):
        return None
    if isinstance(standby, int | float) and standby > 0:
        return -int(min(standby, MAX_VOLUNTEERS))
    if utilization <= 0.0:
        return MAX_VOLUNTEERS if counted else None
    return int(min(MAX_VOLUNTEERS, math.ceil(counted * (1.0 / utilization - 1.0) - 1e-6)))


class RunLister:
    """Keeps a run listed at some indexes. Its methods are for the learner's thread; none but `end` waits.

    Fourteen attributes, because it holds what the learner says until its own thread sends it."""

    def __init__(
        self, folder: Folder, urls: Sequence[str], clock: Clock, *, board: str = "", tell: Callable[[str], None]
    ) -> None:
        """`board` is the address of the run's board, if it is to be named. `tell` gets a sentence when an index refuses
        the listing or cannot be reached, and when it takes it again."""
        self._folder = folder
        self._clients = [IndexClient(url) for url in urls]
        self._clock = clock
        self._board = board
        self._tell = tell
        self._faults: dict[str, str | None] = dict.fromkeys(urls)
        self._lock = threading.Lock()
        self._link = ""
        self._linked = self._counted = 0
        self._missing: int | None = None
        self._wakes = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def begin(self, link: str) -> None:
        """The learner is up, under this join link."""
        if not self._clients:
            return
        board = f", and its board's address, {self._board}" if self._board else ""
        self._tell(PUBLIC_TEXT.format(urls=", ".join(client.url for client in self._clients), board=board))
        self._link = link
        self._thread.start()

    def note(self, *, link: str, volunteers: int) -> None:
        """The newest link, and the volunteers that are linked to the learner now."""
        self._link, self._linked = link, volunteers

    def on_metrics(self, metrics: Mapping[str, object]) -> None:
        """The metrics of an update."""
        counted = metrics.get("plan/volunteers", 0)
        self._counted = int(counted) if isinstance(counted, int | float) else 0
        self._missing = missing_volunteers(metrics)

    def end(self, *, finished: bool) -> None:
        """Tell the indexes that the run has ended, or that its learner is down for now, and return within some
        seconds."""
        if not self._thread.is_alive():
            return
        self._ended = True
        self._wakes.set()
        self._send("ended" if finished else "paused")

    def _run(self) -> None:
        sent = 0
        while not self._ended:
            self._send("running")
            sent += 1
            self._wakes.wait(SOON_S if sent < _SOON else RENEW_S)

    def _send(self, state: State) -> None:
        with self._lock:
            if self._ended and state == "running":
                return
            listing = listing_of(
                self._folder.manifest,
                parse_link(self._link),
                state=state,
                volunteers=0 if state == "ended" else min(MAX_VOLUNTEERS, max(self._linked, self._counted)),
                missing=self._missing,
                now=self._clock.now(),
                board=self._board,
            )
            raw = sign_listing(self._folder.identity, listing)
            for client in self._clients:
                try:
                    client.submit(raw, self._folder.manifest_raw)
                    fault = ""
                except P2PRLError as error:
                    fault = str(error)
                if fault != self._faults[client.url] and not self._ended:
                    self._tell(fault or f"Listed at {client.url}.")
                self._faults[client.url] = fault


@contextmanager
def listed_until_end(lister: RunLister, is_finished: Callable[[], bool]) -> Iterator[None]:
    """Withdraw the listing when this block ends, however it ends."""
    try:
        yield
    finally:
        lister.end(finished=is_finished())
