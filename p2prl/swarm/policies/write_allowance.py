"""Allowance for decoding patches in vain, so that failed routes cannot wear out a disk. Pure.

A version costs at most twice its weights in writes: patches are smaller than the weights together, and the decoded
weights are written once. A route whose patches hash to their names and do not lead to the signed weights costs as much
for nothing, and a learner can sign any number of them. What honest versions leave of their share pays for failures.
"""

from __future__ import annotations

WRITES_PER_VERSION = 2
"""Most that a version costs in writes, in sizes of the weights, failures aside."""

SPARE_WRITES = 4
"""The same for all failures beyond what honest versions have saved: two routes in a row, whatever they cost."""


class WriteAllowance:
    """Bytes that failed routes may still cost."""

    def __init__(self, weight_bytes: int) -> None:
        self._weight_bytes = weight_bytes
        self._spare_bytes = SPARE_WRITES * weight_bytes

    def allows(self, patch_bytes: int) -> bool:
        """Whether a route of this size may be tried: it may fail once all is written."""
        return patch_bytes + self._weight_bytes <= self._spare_bytes

    def failed(self, patch_bytes: int) -> None:
        """A route was decoded in vain."""
        self._spare_bytes -= patch_bytes + self._weight_bytes

    def completed(self, patch_bytes: int) -> None:
        """A version is complete, from patches of this size together, or from none."""
        saved_bytes = (WRITES_PER_VERSION - 1) * self._weight_bytes - patch_bytes
        self._spare_bytes = min(self._spare_bytes + max(0, saved_bytes), SPARE_WRITES * self._weight_bytes)


def most_written(weight_bytes: int, versions: int) -> int:
    """Most bytes that a node writes for this number of versions, with any manifests and patches."""
    return weight_bytes * (WRITES_PER_VERSION * versions + SPARE_WRITES)
