"""Several patches in a row as one pass: segment after segment goes through all of them before the next is read.

So the words between the first version and the last are never anywhere but in the memory of one segment, and however
long the way, the last version's words are written once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from p2prl.errors import RemoteProtocolError
from p2prl.patches.kernels import Kernels
from p2prl.patches.stream import apply_patch, segment_spans
from p2prl.patches.words import Words, WordType


def apply_chain(
    streams: Sequence[Iterable[bytes | memoryview]],
    old_words: Callable[[int, int], Words],
    *,
    words: int,
    word_type: WordType,
    kernels: Kernels,
) -> Iterator[tuple[int, Words]]:
    """(first word, words of the last version) of segment after segment, each proven by the digests of every patch.

    `old_words(start, count)` gives the words the first patch starts from; `streams` are the patches' bytes in pieces.
    Raises as `apply_patch`, also when a stream goes on after its last segment.
    """
    steps: list[Iterator[tuple[int, Words]]] = [((s, old_words(s, n)) for s, n in segment_spans(words))]
    for stream in streams:
        steps.append(
            apply_patch(stream, _taken_from(steps[-1]), words=words, word_type=word_type, kernels=kernels),
        )
    yield from steps[-1]
    for step in steps:  # the last one has read its stream to the end; so must the others
        if next(step, None) is not None:
            raise RemoteProtocolError("patch: more segments than the model has")


def _taken_from(step: Iterator[tuple[int, Words]]) -> Callable[[int, int], Words]:
    def old_words(start: int, count: int) -> Words:
        at, words = next(step)
        assert (at, len(words)) == (start, count), "segments come in the same order in every patch"
        return words

    return old_words
