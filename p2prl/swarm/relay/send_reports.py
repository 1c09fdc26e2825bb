"""Chunks that the shell is sending: the uplink's rate follows from its reports, and who lets chunks lie has to wait."""

from __future__ import annotations

from collections import deque

from p2prl.protocol.identity import PeerId
from p2prl.swarm.relay.relay_config import STALL_S
from p2prl.swarm.relay.state import RelayState
from p2prl.swarm.relay.upload_slots import UploadSlots

_REMEMBERED_FAILURES = 4_096
_LONGEST_REST_S = 600.0


class SendReports:
    """Collects the shell's reports, which carry no time, until the next `settle`."""

    def __init__(self, state: RelayState, queue: UploadSlots) -> None:
        self._state = state
        self._queue = queue
        self._ended: list[tuple[PeerId, bool]] = []
        self._sizes: dict[PeerId, deque[int]] = {}
        """Bytes of the chunks that the shell is sending, by peer: they leave in order."""
        self._failures: dict[PeerId, int] = {}
        """Sends to each peer that failed since the last one that did not."""

    def began(self, peer: PeerId, size_bytes: int, deadline: float, now: float) -> None:
        """The shell gets a chunk for `peer`, whose slot is free again after `deadline` regardless."""
        self._state.send_rate.began(now)
        self._sizes.setdefault(peer, deque()).append(size_bytes)
        self._queue.began(peer, deadline)

    def ended(self, peer: PeerId, *, delivered: bool) -> None:
        """The shell has sent the oldest chunk to `peer`, or failed to."""
        self._ended.append((peer, delivered))

    def settle(self, now: float) -> None:
        """Count what was reported."""
        for peer, delivered in self._ended:
            sizes = self._sizes.get(peer)
            if sizes is None:
                continue
            size = sizes.popleft()
            if not sizes:
                del self._sizes[peer]
            self._state.send_rate.ended(size if delivered else 0, now)
            self._queue.done(peer, delivered=delivered)
            if delivered:
                self._failures.pop(peer, None)
            else:
                self._rest(peer, now)
        self._ended.clear()

    def _rest(self, peer: PeerId, now: float) -> None:
        """Grant nothing to a peer to which a chunk could not be sent, each time twice as long."""
        failures = self._failures[peer] = self._failures.pop(peer, 0) + 1
        if len(self._failures) > _REMEMBERED_FAILURES:
            del self._failures[next(iter(self._failures))]
        rest_s = min(_LONGEST_REST_S, STALL_S * 2.0 ** min(failures - 1, 16))
        for transfer in self._state.transfers.values():
            interest = transfer.interested.get(peer)
            if interest is not None:
                interest.pause(now + rest_s)
