"""Batches of rows of similar size, so that little is padded. Imports no torch: plans of memory read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

DEFAULT_BATCH_TOKENS = 16_384
"""Tokens of one batch, padding included. Bounds activations and the key-value cache."""


def batches(sizes: Sequence[tuple[int, int]], max_tokens: int) -> Iterator[list[int]]:
    """Indices of rows in batches of at most `max_tokens` tokens, or of one row alone.

    `sizes` holds (prompt tokens, completion tokens) of each row; prompts are padded to the longest of a batch, and so
    are completions.
    """
    batch: list[int] = []
    longest = (0, 0)
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        grown = (max(longest[0], sizes[index][0]), max(longest[1], sizes[index][1]))
        if batch and (len(batch) + 1) * sum(grown) > max_tokens:
            yield batch
            batch, grown = [], sizes[index]
        batch.append(index)
        longest = grown
    if batch:
        yield batch
