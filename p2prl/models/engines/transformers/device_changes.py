"""Changes of an engine's weights from one policy to the next, found and written on the device they are on.

The words that differ are compared and compacted there, piece by piece, while the engine samples; a switch then writes
those words and no others. Two words are equal if their bits are: −0 is not 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BITS = {2: torch.int16, 4: torch.int32}
"""Integers of a word's width. torch compares and indexes no unsigned ones on every device."""

_MOST_SHARE = 32
"""One word in this many may change: 3 %, twice what an update at 1e-6 changes and more than one at 3e-6. Beyond that
copying all weights takes no longer, and positions and words would be a tenth of the weights in memory."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Words of one tensor that change."""

    positions: Tensor
    """Of the words in the flat tensor, ascending (N), int64."""
    words: Tensor
    """What they become (N), as integers of their width."""

    @classmethod
    def between(cls, held: Tensor, wanted: Tensor) -> Changes:
        """From flat weights to others of the same dtype on the same device."""
        bits = words_of(wanted)
        positions = torch.nonzero(words_of(held) != bits).view(-1)
        return cls(positions, bits.index_select(0, positions))

    def write(self, weights: Tensor) -> None:
        """Write the words into flat weights."""
        words_of(weights).scatter_(0, self.positions, self.words)

    def are_in(self, weights: Tensor) -> bool:
        """Whether flat weights have these words at these positions."""
        return bool(torch.equal(words_of(weights).index_select(0, self.positions), self.words))


def words_of(weights: Tensor) -> Tensor:
    """The bits of flat floating-point weights, in the same memory."""
    return weights.detach().view(_BITS[weights.element_size()])


Pieces = tuple[tuple[Tensor, Changes], ...]
"""Flat pieces of a model, and what changes in each."""


def write_pieces(pieces: Pieces) -> bool:
    """Write what changes, in proportion to it, and look whether it is there."""
    with torch.no_grad():
        for piece, own in pieces:
            own.write(piece)
    return all(own.are_in(piece) for piece, own in pieces)


class Comparison:
    """Collects the changes of a whole model, piece after piece. Gives up where too much changes."""

    def __init__(self, words: int) -> None:
        """`words` are those of the model."""
        self._room = words // _MOST_SHARE
        self._pieces: list[tuple[Tensor, Changes]] | None = []

    def add(self, held: Tensor, wanted: Tensor) -> None:
        """Compare a flat piece of the model's weights with what it is to become, on any device."""
        if self._pieces is None:
            return
        changes = Changes.between(held, wanted.to(device=held.device, dtype=held.dtype))
        self._room -= len(changes.positions)
        if self._room < 0:
            self._pieces = None
        elif len(changes.positions):
            self._pieces.append((held, changes))

    def give_up(self) -> None:
        """Find nothing: the model does not hold still."""
        self._pieces = None

    @property
    def pieces(self) -> Pieces | None:
        """None where all weights must be copied."""
        return None if self._pieces is None else tuple(self._pieces)
