"""Decode patches into a policy's weights, in a thread of the role's process while it samples.

Each segment goes through all patches of the route before the next one, so only a few segments are in memory for any
number of patches and any model size, and the weights are written once. The file gets its name once every segment and
the complete weights have the digests the learner signed, and survives a crash from then on.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from blake3 import blake3

from p2prl.disk_full import write_error
from p2prl.errors import IntegrityError, MachineError, RemoteProtocolError
from p2prl.net.process import control
from p2prl.patches.decode import apply_route
from p2prl.patches.kernel_choice import kernels_for
from p2prl.patches.kernels import Kernels
from p2prl.patches.words import WORD_TYPES, Words, WordType

_PIECE_BYTES = 1 << 20

log = logging.getLogger("p2prl.net")


def rebuild(order: control.PatchesReady) -> None:
    """Decode the patches of `order` and write the weights to its target.

    Raises `IntegrityError` or `RemoteProtocolError` when the patches do not lead from the base to the signed weights,
    and `MachineError` when the disk refuses.
    """
    word_type = WORD_TYPES[order.dtype]
    target = Path(order.target)
    part = target.with_suffix(".rebuilt")
    kernels = kernels_for(order.size_bytes)
    state = blake3()
    try:
        with part.open("wb") as file:
            for words in _decoded_words(order, word_type, kernels):
                data = np.ascontiguousarray(words).view(np.uint8).data
                state.update(data)
                file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if state.digest() != order.weights_digest:
            raise IntegrityError("patches: the decoded weights are not those of the manifest")
        part.rename(target)
    except OSError as error:
        raise write_error(error, f"in {target.parent}") from error
    finally:
        part.unlink(missing_ok=True)


def _decoded_words(order: control.PatchesReady, word_type: WordType, kernels: Kernels) -> Iterator[Words]:
    """The decoded words, segment by segment."""
    if not order.base:  # a keyframe starts from zeros
        yield from _applied(order, lambda _, count: np.zeros(count, dtype=word_type.dtype), word_type, kernels)
        return
    with Path(order.base).open("rb") as file:
        if os.fstat(file.fileno()).st_size != order.size_bytes:
            raise IntegrityError("patches: the weights they apply to are not of this model")

        def old_words(start: int, count: int) -> Words:
            data = os.pread(file.fileno(), count * word_type.word_bytes, start * word_type.word_bytes)
            return np.frombuffer(data, dtype=word_type.dtype)

        yield from _applied(order, old_words, word_type, kernels)


def _applied(
    order: control.PatchesReady, old_words: Callable[[int, int], Words], word_type: WordType, kernels: Kernels
) -> Iterator[Words]:
    streams = [_pieces(path) for path in order.patches]
    count = order.size_bytes // word_type.word_bytes
    for _, words in apply_route(streams, old_words, words=count, word_type=word_type, kernels=kernels):
        yield words


def _pieces(path: str) -> Iterator[bytes]:
    with Path(path).open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece


def carry_out(order: control.PatchesReady) -> tuple[control.VersionRebuilt, str]:
    """Decode, and return the answer for the network process and an error message for the user, empty on success."""
    fault = ""
    try:
        rebuild(order)
    except (IntegrityError, RemoteProtocolError, MachineError) as error:
        fault = str(error)
    except Exception as error:  # the thread's outermost loop: a node must always get an answer
        log.exception("decoding patches failed")
        fault = f"{type(error).__name__}: {error}"
    return control.VersionRebuilt(order.digest, not fault), fault


class PatchDecoder:
    """Decodes one version after the other in its own thread."""

    def __init__(self, on_done: Callable[[control.VersionRebuilt, str], None]) -> None:
        """`on_done` gets each answer and its error message, on that thread."""
        self._on_done = on_done
        self._orders: queue.SimpleQueue[control.PatchesReady | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, order: control.PatchesReady) -> None:
        """Queue an order; orders are decoded one at a time."""
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
            self._on_done(*carry_out(order))
