"""Patches decoded once for all simulated machines: each would get the same words from the same base."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from p2prl.net.process.control import PatchesReady
from p2prl.net.process.version_rebuild import Decode
from p2prl.patches.decode import Rebuilt, apply_route
from p2prl.patches.words import Words

_MOST_ROUTES = 8
"""Routes in memory: machines follow the newest versions, most of them by the same patch."""


class SharedDecoding:
    """Decoded routes by their base and their patches, the newest few."""

    def __init__(self) -> None:
        self._decoded: dict[tuple[bytes, ...], list[Rebuilt]] = {}

    def of(self, order: PatchesReady) -> Decode:
        """What decodes this order, as `apply_route` would."""

        def decode(
            streams: Sequence[Iterable[bytes | memoryview]],
            old_words: Callable[[int, int], Words],
            *,
            both_ways: bool = False,
            **model: Any,
        ) -> Iterator[Rebuilt]:
            route = (order.base, *order.patches, b"both ways" if both_ways else b"")
            if route not in self._decoded:
                segments = apply_route(streams, old_words, both_ways=both_ways, **model)
                # Old words are a view of the machine's own file, which it will overwrite.
                made = [replace(each, words=each.words.copy(), old=None) for each in segments]
                self._decoded[route] = made
                if len(self._decoded) > _MOST_ROUTES:
                    del self._decoded[next(iter(self._decoded))]
            for each in self._decoded[route]:
                yield replace(each, old=old_words(each.start, len(each.words)) if both_ways else None)

        return decode
