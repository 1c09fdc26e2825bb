"""A network port in front of another: everything passes. Subclasses change what they are for."""

from __future__ import annotations

from p2prl.net.process import control
from p2prl.net.process.bridge import NetworkPort, Suspendable


class PassingPort:
    """Passes every call on to another port."""

    def __init__(self, port: NetworkPort) -> None:
        self._port = port

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._port.addresses

    @property
    def status(self) -> control.Status | None:
        return self._port.status

    def send(self, message: control.ToNetwork) -> None:
        self._port.send(message)

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        return self._port.poll(timeout_s)

    def wake(self) -> None:
        self._port.wake()

    def suspend(self) -> None:
        """Do nothing for a port that cannot be left."""
        if isinstance(self._port, Suspendable):
            self._port.suspend()

    def resume(self) -> None:
        if isinstance(self._port, Suspendable):
            self._port.resume()

    def close(self) -> None:
        self._port.close()
