"""A run met before its role is ready: the network is up, and what it says meanwhile is kept for the role."""

from __future__ import annotations

from collections.abc import Callable

from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort
from p2prl.net.process.passing_port import PassingPort

_POLL_S = 0.5


class EarlyPort(PassingPort):
    """Gives its role every message, also those that `await_run` has read."""

    def __init__(self, port: NetworkPort) -> None:
        super().__init__(port)
        self._kept: list[control.FromNetwork] = []

    def await_run(self, is_over: Callable[[], bool]) -> bytes | None:
        """The envelope of the run's manifest; None when it has not come before `is_over`."""
        while not is_over():
            messages = self._port.poll(_POLL_S)
            self._kept += messages
            for message in messages:
                if isinstance(message, control.RunKnown):
                    return message.manifest
        return None

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        kept, self._kept = self._kept, []
        return kept or self._port.poll(timeout_s)
