"""Gain of a history: the versions of one training run, each patch coded against what the patches before have shown.

The gain of each context is measured by withholding the other: groups of moved words with steps counted up and down, and
turned steps with words grouped by exponent alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from p2prl.errors import IntegrityError
from p2prl.patches.exponent_classes import History
from p2prl.patches.kernels import Kernels
from p2prl.patches.sparse_codec import decode_ec2, encode_ec2
from p2prl.patches.stream_format import HEADER_BYTES, SEGMENT_WORDS, words_digest
from p2prl.patches.words import Words, WordType
from p2prl_lab.bench.patch.simulated_training import entropy_bits

NONE, MOVED, DIRECTION, BOTH = "none", "moved", "direction", "moved and direction"
"""Contexts: nothing, whether a word has changed before, the direction of its last step, both."""


@dataclass(frozen=True, kw_only=True)
class VersionRow:
    """One version of the run with one context."""

    version: int
    context: str
    history: bool
    """Whether the context is the whole history."""
    changed_share: float
    entropy_bytes: float
    """Entropy of position and step given the exponent, without history."""
    patch_bytes: int
    """Header and body of all segments."""
    encode_mb_s: float
    """Digests of the words before and after included."""
    decode_mb_s: float


def measure_history(
    versions: Sequence[Words], word_type: WordType, kernels: Kernels, best_time: Callable[..., tuple[float, Any]]
) -> list[VersionRow]:
    """A row for each version after the first and each context. `best_time(work)` gives (seconds, result).

    The history begins empty before the first version. `IntegrityError` when a version is not reproduced.
    """
    rows = []
    spans = [
        (start, min(start + SEGMENT_WORDS, len(versions[0]))) for start in range(0, len(versions[0]), SEGMENT_WORDS)
    ]
    histories = [History.none(end - start) for start, end in spans]
    for version, (before, after) in enumerate(pairwise(versions), start=1):
        pairs = [(np.asarray(before[start:end]), np.asarray(after[start:end])) for start, end in spans]
        changed = float(np.mean([np.mean(old != new) for old, new in pairs]))
        entropy = sum(entropy_bits(old, new) for old, new in pairs) / 8
        for context in (NONE, MOVED, DIRECTION, BOTH):
            known = [_withheld(history, context) for history in histories]
            size, encode_s, decode_s = 0, 0.0, 0.0
            for (old, new), history in zip(pairs, known, strict=True):
                body_bytes, spent = _coded(old, new, history, word_type, kernels, best_time)
                size += HEADER_BYTES + body_bytes
                encode_s, decode_s = encode_s + spent[0], decode_s + spent[1]
            rows.append(
                VersionRow(
                    version=version,
                    context=context,
                    history=context == BOTH,
                    changed_share=changed,
                    entropy_bytes=entropy,
                    patch_bytes=size,
                    encode_mb_s=after.nbytes / encode_s / 1e6,
                    decode_mb_s=after.nbytes / decode_s / 1e6,
                )
            )
        histories = [history.after(old, new, word_type) for history, (old, new) in zip(histories, pairs, strict=True)]
    return rows


def _withheld(history: History, context: str) -> History | None:
    if context == NONE:
        return None
    nothing = np.zeros_like(history.moved)
    moved = nothing if context == DIRECTION else history.moved
    return History(moved, nothing if context == MOVED else history.down)


def _coded(
    old: Words,
    new: Words,
    history: History | None,
    word_type: WordType,
    kernels: Kernels,
    best_time: Callable[..., tuple[float, Any]],
) -> tuple[int, tuple[float, float]]:
    """(length of the body, seconds to encode and decode)."""

    def encode() -> bytes:
        words_digest(old)
        words_digest(new)
        return encode_ec2(old, new, word_type, kernels, history=history)

    def decode() -> Words:
        words_digest(old)
        words = decode_ec2(old, memoryview(body), word_type, kernels, history=history)
        words_digest(words)
        return words

    encode_s, body = best_time(encode)
    decode_s, words = best_time(decode)
    if not np.array_equal(words, new):
        raise IntegrityError("EC2 with a history did not reproduce the new words")
    return len(body), (encode_s, decode_s)


def over_entropy(rows: Sequence[VersionRow], context: str, *, since: int = 1) -> float:
    """Bytes of a context over the entropy without history, all versions from `since` on together."""
    own = [row for row in rows if row.context == context and row.version >= since]
    return sum(row.patch_bytes for row in own) / sum(row.entropy_bytes for row in own)


def history_as_markdown(rows: Sequence[VersionRow]) -> str:
    """The table: contexts with all versions together, and the bytes of each version over its entropy."""
    lines = [
        "| version | changed | entropy, bytes | " + " | ".join((NONE, MOVED, DIRECTION, BOTH)) + " |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for version in sorted({row.version for row in rows}):
        own = [row for row in rows if row.version == version]
        ratios = " | ".join(f"{row.patch_bytes / row.entropy_bytes:.3f}" for row in own)
        lines.append(f"| {version} | {own[0].changed_share:.2%} | {own[0].entropy_bytes:,.0f} | {ratios} |")
    for name, since in (("all", 1), ("from 2 on", 2)):
        total = " | ".join(
            f"{over_entropy(rows, context, since=since):.3f}" for context in (NONE, MOVED, DIRECTION, BOTH)
        )
        entropy = sum(row.entropy_bytes for row in rows if row.context == NONE and row.version >= since)
        lines.append(f"| {name} | | {entropy:,.0f} | {total} |")
    return "\n".join(lines)
