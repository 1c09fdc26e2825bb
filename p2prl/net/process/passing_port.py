"""A network port in front of another: everything passes. Subclasses change what they are for."""

from __future__ import annotations

from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort, Suspendable


class PassingPort:
    """See `NetworkPort`, for each of its members."""

    def __init__(self, port: NetworkPort) -> None:
        self._port = port

    @property
    def addresses(self) -> tuple[str, ...]:
        """See `NetworkPort`."""
        return self._port.addresses

    @property
    def status(self) -> control.Status | None:
        """See `NetworkPort`."""
        return self._port.status

    def send(self, message: control.ToNetwork) -> None:
        """See `NetworkPort`."""
        self._port.send(message)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """See `NetworkPort`."""
        return self._port.poll(timeout_s)

    def wake(self) -> None:
        """See `NetworkPort`."""
        self._port.wake()

    def suspend(self) -> None:
        """See `Suspendable`; nothing for a port that cannot be left."""
        if isinstance(self._port, Suspendable):
            self._port.suspend()

    def resume(self) -> None:
        """See `Suspendable`."""
        if isinstance(self._port, Suspendable):
            self._port.resume()

    def close(self) -> None:
        """See `NetworkPort`."""
        self._port.close()
