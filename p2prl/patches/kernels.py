"""Kernels port: the four passes over the words of a segment, and their numpy implementation.

`numba_kernels` implements the same port in compiled code; `kernel_choice` picks one. Both give the same arrays for the
same words, and all later steps are shared, so a patch does not depend on the implementation. Arguments are validated
before they reach a kernel: no untrusted counts or ranks arrive here.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from p2prl.patches.exponent_classes import ClassTable
from p2prl.patches.words import Words, WordType, exponents_of, stepped, steps_between

Counts = NDArray[np.int64]


class Kernels(Protocol):
    """Passes over the words of one segment."""

    @property
    def name(self) -> str:
        """Name of the implementation, for tables."""

    def histogram(self, old: Words, word_type: WordType) -> Counts:
        """Count the words of each exponent."""

    def tally(self, old: Words, new: Words, word_type: WordType) -> tuple[Counts, Counts]:
        """Count (words, changed words) by the exponent of the old word."""

    def find(self, old: Words, new: Words, word_type: WordType, table: ClassTable) -> tuple[NDArray[np.uint32], Words]:
        """(gaps between marked ranks, ulp steps of changed words), class after class, in the order of the words."""

    def apply(
        self, old: Words, word_type: WordType, table: ClassTable, ranks: NDArray[np.int64], steps: Words
    ) -> Words:
        """Return the new words. `ranks` are the marked ranks class after class, ascending within each and in range."""


class NumpyKernels:
    """Reference implementation: sorts word indices by class (a radix sort, eight bits) and slices."""

    name = "numpy"

    def histogram(self, old: Words, word_type: WordType) -> Counts:
        return np.bincount(exponents_of(old, word_type), minlength=word_type.exponents).astype(np.int64)

    def tally(self, old: Words, new: Words, word_type: WordType) -> tuple[Counts, Counts]:
        changed = old[old != new]
        return self.histogram(old, word_type), self.histogram(changed, word_type)

    def find(self, old: Words, new: Words, word_type: WordType, table: ClassTable) -> tuple[NDArray[np.uint32], Words]:
        order = _by_class(old, word_type, table)
        changed = old != new
        flags = changed if order is None else changed[order]
        gaps, places, start = [], [], 0
        for total, inverted in zip(table.words, table.inverted, strict=True):
            own = flags[start : start + total]
            ranks = np.flatnonzero(own)
            places.append(ranks + start if order is None else order[start : start + total][ranks])
            if inverted:
                ranks = np.flatnonzero(~own)
            gaps.append((np.diff(ranks, prepend=-1) - 1).astype(np.uint32))
            start += total
        where = np.concatenate(places)
        return np.concatenate(gaps), steps_between(old[where], new[where], word_type)

    def apply(
        self, old: Words, word_type: WordType, table: ClassTable, ranks: NDArray[np.int64], steps: Words
    ) -> Words:
        order = _by_class(old, word_type, table)
        places, start, at = [], 0, 0
        for total, marks, inverted in zip(table.words, table.marks, table.inverted, strict=True):
            own = ranks[at : at + marks]
            if inverted:
                others = np.ones(total, dtype=bool)
                others[own] = False
                own = np.flatnonzero(others)
            places.append(own + start if order is None else order[start : start + total][own])
            start += total
            at += marks
        where = np.concatenate(places)
        new = old.copy()
        new[where] = stepped(old[where], steps, word_type)
        return new


def _by_class(old: Words, word_type: WordType, table: ClassTable) -> NDArray[np.intp] | None:
    """Indices of the words class after class; None when there is one class and nothing to sort."""
    if len(table.words) == 1:
        return None
    return np.argsort(table.class_of_exponent[exponents_of(old, word_type)], kind="stable")


NUMPY_KERNELS: Kernels = NumpyKernels()
