"""Decode patches into a policy's weights, in a thread of the role's process while it samples."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from pathlib import Path

from p2prl.errors import IntegrityError, MachineError, RemoteProtocolError
from p2prl.net.process import control
from p2prl.net.process.version_rebuild import Decode, forget_others, rebuild
from p2prl.net.storage.store_files import StoreFiles
from p2prl.patches.decode import apply_route
from p2prl.swarm import signals

log = logging.getLogger("p2prl.net")


def carry_out(
    order: control.PatchesReady, files: StoreFiles | None = None, decode: Decode = apply_route
) -> tuple[signals.VersionRebuilt, str]:
    """Decode, and return the answer for the network process and an error message for the user, empty on success.

    `files` and `decode` as in `rebuild`.
    """
    fault = ""
    try:
        rebuild(order, files, decode)
    except (IntegrityError, RemoteProtocolError, MachineError) as error:
        fault = str(error)
    except Exception as error:  # the thread's outermost loop: a node must always get an answer
        log.exception("decoding patches failed")
        fault = f"{type(error).__name__}: {error}"
    return signals.VersionRebuilt(order.digest, not fault), fault


def forget(released: control.WeightsReleased) -> None:
    """Forget versions that the node has released. A failure costs only room, until the next order or start."""
    try:
        forget_others(Path(released.folder), released.held)
    except (IntegrityError, MachineError) as error:
        log.warning("old versions could not be deleted: %s", error)


class PatchDecoder:
    """Decodes one version after the other in its own thread."""

    def __init__(self, on_done: Callable[[signals.VersionRebuilt, str], None]) -> None:
        """`on_done` gets each answer and its error message, on that thread."""
        self._on_done = on_done
        self._orders: queue.SimpleQueue[control.PatchesReady | control.WeightsReleased | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, order: control.PatchesReady | control.WeightsReleased) -> None:
        """Queue an order; they are carried out one at a time."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="p2prl-rebuild", daemon=True)
            self._thread.start()
        self._orders.put(order)

    def close(self, *, timeout_s: float) -> None:
        """Finish the queued orders, waiting at most `timeout_s`; a half-written file is deleted at the next start."""
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            if isinstance(order, control.WeightsReleased):
                forget(order)
            else:
                self._on_done(*carry_out(order))
