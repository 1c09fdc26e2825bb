"""The owner's order as a role's loop follows it: given on the controls' thread, followed on the role's own.

Every role that its owner can pause leaves the network and keeps a duty cycle in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from p2prl.clock import Clock
from p2prl.controls.rules import Order
from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort, Suspendable
from p2prl.net.process.run_preparation import RunPreparation

_RESTING_POLL_S = 1.0
"""Longest wait for messages while the owner's limits let the role do nothing: a resting worker should cost nothing."""


IDLE_S = 300.0
"""Without anything computed for so long, a role that has computed is idle: replays and large downloads take minutes."""


class OrderFollower:
    """The order in force, and what of it concerns the network, the turns of the loop and the time that is computed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._network: NetworkPort | None = None
        self._compute_from = 0.0
        self._computed_at: float | None = None
        self._followed: Order | None = None
        self.order = Order()
        self.is_suspended = False
        """Whether the network has been left."""

    def attach(self, network: NetworkPort) -> None:
        """The role works with this network from now on."""
        self._network = network

    def give(self, order: Order) -> None:
        """A new order. From any thread; the role is woken."""
        self.order = order
        if self._network is not None:
            self._network.wake()

    def limit_upload(self, *, bytes_s: float, monthly_bytes: int) -> None:
        """Change what the network may upload, as `SetUploadCaps`. From any thread."""
        if self._network is not None:
            self._network.send(control.SetUploadCaps(bytes_s, monthly_bytes))

    def follow_network(self, order: Order) -> None:
        """Leave the network or join it again, as this order says, and note that all of it is followed: the engine is
        freed first, since leaving takes seconds."""
        leaves, network = not order.keeps_network, self._network
        if leaves != self.is_suspended and network is not None and isinstance(network, Suspendable):
            self.is_suspended = leaves
            if leaves:
                network.suspend()
            else:
                network.resume()
        self._followed = order

    def has_followed(self, order: Order) -> bool:
        """Whether the role has done what this order says. From any thread."""
        return self._followed == order

    def turns(self, preparation: RunPreparation[Any], *, is_due: Callable[[], bool], poll_s: float) -> Iterator[float]:
        """The turns of the role's loop, while one is due. Yields how long each may wait for messages, in seconds:
        `poll_s`, or longer at rest.

        Turns on the network count towards the patience of `preparation`, with the errors of its `count_turn`.
        """
        assert self._network is not None
        ended = self._clock.now()
        while is_due():
            began = ended  # a turn begins where the last one ended: no time is left uncounted
            yield _RESTING_POLL_S if self.order.rests else poll_s
            ended = self._clock.now()
            if not self.is_suspended:
                preparation.count_turn(ended - began, self._network)

    def computed(self, seconds: float) -> None:
        """The engine has computed for this long; `rest_s` tells how long it rests now."""
        self._computed_at = self._clock.now()
        if self.order.duty < 1.0:
            self._compute_from = self._clock.now() + seconds * (1.0 / self.order.duty - 1.0)

    def rest_s(self) -> float:
        """Seconds until the duty cycle lets the engine compute again."""
        return max(0.0, self._compute_from - self._clock.now())

    @property
    def is_idle(self) -> bool:
        """Whether the role has computed, and nothing lately. From any thread."""
        return self._computed_at is not None and self._clock.now() - self._computed_at > IDLE_S

    def memory_bytes(self) -> int:
        """Memory of the network's processes, by their last report; 0 while they are gone. From any thread."""
        status = None if self._network is None or self.is_suspended else self._network.status
        return 0 if status is None else status.resident_bytes + status.daemon_bytes
