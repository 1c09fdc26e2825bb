"""Reads chunks in a thread of its own, so that an event loop never waits for a disk, a lock or a computation."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from p2prl.protocol.digests import Digest
from p2prl.protocol.link_messages import Place
from p2prl.protocol.manifests import BlobRef

_MOST_ASKED = 64
"""Chunks that wait to be read. More than a node's upload slots: who asks in vain asks again after the next one."""

_MOST_READ = 8
"""Chunks in memory that nobody has taken yet: 32 MiB. The oldest goes first; its request may have been cancelled."""


class ReadingThread:
    """Chunks that were asked for are read one after the other. Methods are for one thread, the event loop's."""

    def __init__(self, read: Callable[[BlobRef, int], bytes], on_read: Callable[[], None]) -> None:
        """`read` and `on_read`, which tells that a chunk can be taken, run on the thread."""
        self._read = read
        self._on_read = on_read
        self._asked: OrderedDict[Place, BlobRef] = OrderedDict()
        self._done: OrderedDict[Place, bytes | Exception] = OrderedDict()
        self._reading: Place | None = None
        """Not in `_asked` any more and not yet in `_done`; None also when it was forgotten meanwhile."""
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    def ready(self, ref: BlobRef, index: int) -> bool:
        """Whether a chunk can be taken; if not, it is read as soon as there is room."""
        place = ref.root, index
        with self._changed:
            if place in self._done:
                self._done.move_to_end(place)  # it is taken next
                return True
            if place != self._reading and place not in self._asked and len(self._asked) < _MOST_ASKED:
                self._asked[place] = ref
                self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="p2prl-chunks", daemon=True)
            self._thread.start()
        return False

    def take(self, ref: BlobRef, index: int) -> bytes | None:
        """A chunk that is ready, once; None when it is not. Raises what reading it raised."""
        with self._changed:
            found = self._done.pop((ref.root, index), None)
        if isinstance(found, Exception):
            raise found
        return found

    def forget(self, root: Digest) -> None:
        """Nothing of this blob is read from now on; a chunk that is being read is thrown away."""
        with self._changed:
            for places in (self._asked, self._done):
                for place in [each for each in places if each[0] == root]:
                    del places[place]
            if self._reading is not None and self._reading[0] == root:
                self._reading = None

    def close(self) -> None:
        """End the thread after the chunk that is being read."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (next_one := self._next()) is not None:
            place, ref = next_one
            try:
                found: bytes | Exception = self._read(ref, place[1])
            except Exception as error:  # noqa: BLE001 - raised on the thread that takes it
                found = error
            with self._changed:
                if self._closed:
                    return
                if self._reading == place:
                    self._done[place] = found
                    if len(self._done) > _MOST_READ:
                        self._done.popitem(last=False)
                self._reading = None
            self._on_read()

    def _next(self) -> tuple[Place, BlobRef] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._asked or self._closed)
            if self._closed:
                return None
            place, ref = self._asked.popitem(last=False)
            self._reading = place
            return place, ref
