"""A patch stream onto a weight file, piece by piece as it arrives."""

from __future__ import annotations

from collections.abc import Iterable

from p2prl.errors import RemoteProtocolError
from p2prl.patches.stream import PatchReader
from p2prl.weights.records import Version
from p2prl.weights.weight_file import WeightFile


class PatchPreparation:
    """Prepares a weight file for the version a stream leads to. What an earlier process prepared is read over."""

    def __init__(self, weights: WeightFile, target: Version) -> None:
        """`LocalProtocolError` when the weight file holds no version."""
        self._weights = weights
        self._reader = PatchReader(words=weights.words, word_type=weights.word_type)
        self._index = 0
        weights.begin(target)

    @property
    def finished(self) -> bool:
        """Whether every segment has come, and a commit is all that is left."""
        return self._reader.finished

    def receive(self, data: bytes | memoryview) -> None:
        """Take the stream's next bytes. Raises as `PatchReader.receive` and `WeightFile.prepare` do."""
        for header, body in self._reader.receive(data):
            self._weights.prepare(self._index, header, body)
            self._index += 1


def apply_patch_stream(weights: WeightFile, target: Version, pieces: Iterable[bytes | memoryview]) -> Version:
    """Bring a weight file to `target` by the patch in `pieces`, and return what it holds then.

    On `RemoteProtocolError` or `IntegrityError` its words are what they were.
    """
    preparation = PatchPreparation(weights, target)
    for piece in pieces:
        preparation.receive(piece)
    if not preparation.finished:
        raise RemoteProtocolError("patch: the stream ends too early")
    return weights.commit()
