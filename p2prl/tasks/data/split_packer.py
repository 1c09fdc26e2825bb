"""Packs one split of a data set: writes its prompts and rows, and finds rows that repeat or contradict each other.

In memory a row takes 48 bytes, whatever its length.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2prl.errors import ConfigError
from p2prl.protocol import limits
from p2prl.tasks.data.checked_rows import CheckedRow
from p2prl.tasks.data.columns import ANSWER
from p2prl.tasks.data.packed_data import MAX_ROW_BYTES, prompt_record, row_record
from p2prl.tasks.data.packed_file import PackedWriter
from p2prl.tasks.data.prompts import normal_text
from p2prl.tasks.scorers.answer_text import answer_number, marked_answer, plain_latex
from p2prl.tasks.scorers.numbers import number_of as number_in

Digests = NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRoom:
    """Tokens that the model leaves for prompts and answers."""

    context: int | None
    """Longest prompt and completion together; None if the model sets no limit."""
    max_new_tokens: int

    @property
    def longest_prompt(self) -> int:
        """Tokens of the longest prompt that leaves room for the longest completion; 0 or less if none does."""
        if self.context is None:
            return limits.MAX_PROMPT_TOKENS
        return min(limits.MAX_PROMPT_TOKENS, self.context - self.max_new_tokens)

    @property
    def longest_answer(self) -> int:
        """Tokens of the longest answer that a completion could ever hold."""
        return min(limits.MAX_COMPLETION_TOKENS, self.context or limits.MAX_COMPLETION_TOKENS)


@dataclass(slots=True)
class LongPrompts:
    """Rows whose prompts do not fit."""

    count: int = 0
    first: str = ""
    """Place of the first."""
    longest: int = 0
    """Tokens of the longest."""


class SplitPacker:
    """Collects the rows of one split and writes its two packed files."""

    def __init__(self, prompts: Path, rows: Path, place: Callable[[int], str], room: PromptRoom) -> None:
        """`place` names a row of the source for a message."""
        self._prompts = PackedWriter(prompts)
        self._rows = PackedWriter(rows)
        self._place = place
        self._room = room
        self.long = LongPrompts()
        self.longest = 0
        """Tokens of the longest prompt that was packed."""
        self._answered = False
        self._numbers, self._exact, self._answers, self._normal = (array("Q") for _ in range(4))

    @property
    def size_bytes(self) -> int:
        """Bytes of both files so far."""
        return self._prompts.size_bytes + self._rows.size_bytes

    def __len__(self) -> int:
        return len(self._numbers)

    def close(self) -> None:
        """Give the temporary files back."""
        self._prompts.close()
        self._rows.close()

    def add(self, row: CheckedRow, rendered: str, token_ids: Sequence[int]) -> None:
        """Pack a row, unless its prompt is too long. `ConfigError` when it has no tokens, or too many bytes."""
        if not token_ids:
            raise ConfigError(
                f"{row.place}: the tokenizer makes no tokens of the prompt",
                remedy="Choose a model whose tokenizer knows the language of the data.",
            )
        if len(token_ids) > self._room.longest_prompt:
            self.long.count += 1
            self.long.first = self.long.first or row.place
            self.long.longest = max(self.long.longest, len(token_ids))
            return
        record = row_record({**row.columns, "prompt": row.prompt, "rendered": rendered})
        if len(record) > MAX_ROW_BYTES:
            raise ConfigError(
                f"{row.place}: the row takes {len(record):,} bytes with its prompt, more than the {MAX_ROW_BYTES:,} "
                "that scorers read",
                remedy="Leave out columns that no scorer reads, or remove the row.",
            )
        self._prompts.append(prompt_record(token_ids))
        self._rows.append(record)
        self._answered = row.answered
        self.longest = max(self.longest, len(token_ids))
        self._numbers.append(row.number)
        self._exact.append(number_of(rendered.encode()))
        self._answers.append(number_of(_answer_key(row.columns[ANSWER]) if row.answered else _canonical(row.columns)))
        self._normal.append(number_of(normal_text(row.prompt)))

    def finish(self, *, drop_conflicts: bool = False) -> tuple[int, list[str]]:
        """Write both files without repeated rows: the number of rows, and notices of those left out if any.

        Of rows with one prompt and different answers `drop_conflicts` keeps the first; without it they are a
        `ConfigError` naming both places.
        """
        rows, firsts = self._repeated()
        answers = np.frombuffer(self._answers, dtype=np.uint64)
        differing = answers[rows] != answers[firsts]
        conflicts = int(differing.sum())
        if conflicts and not drop_conflicts:
            row, first = self._first_of(rows, firsts, differing)
            other = "another answer" if self._answered else "other columns"
            more = f"; {conflicts - 1:,} more rows are like it" if conflicts > 1 else ""
            raise ConfigError(
                f"{row}: the same prompt as {first}, with {other}{more}",
                remedy="Correct or remove one of the two rows; or keep the first of such rows: --drop-conflicts.",
            )
        self._prompts.finish(without=rows)
        self._rows.finish(without=rows)
        notices = []
        if conflicts:
            row, first = self._first_of(rows, firsts, differing)
            noun = (
                "row contradicts an earlier one and was" if conflicts == 1 else "rows contradict earlier ones and were"
            )
            notices.append(f"{conflicts:,} {noun} left out; the first: {row}, which contradicts {first}.")
        if repeated := len(rows) - conflicts:
            row, first = self._first_of(rows, firsts, ~differing)
            noun = "row repeats an earlier one and was" if repeated == 1 else "rows repeat earlier ones and were"
            notices.append(f"{repeated:,} {noun} left out; the first: {row}, which repeats {first}.")
        return len(self) - len(rows), notices

    def overlap(self, other: SplitPacker) -> tuple[int, str, str]:
        """Number of rows here that ask the same as a row of `other`, and the places of the first such pair."""
        mine, theirs = (np.frombuffer(each._normal, dtype=np.uint64) for each in (self, other))
        shared = np.isin(mine, theirs)
        count = int(shared.sum())
        if not count:
            return 0, "", ""
        row = int(np.flatnonzero(shared)[0])
        match = int(np.flatnonzero(theirs == mine[row])[0])
        return count, self._place(self._numbers[row]), other._place(other._numbers[match])

    def _first_of(self, rows: NDArray[np.int64], firsts: NDArray[np.int64], among: NDArray[np.bool_]) -> list[str]:
        """Places of the earliest repeated row among some, and of the row that it repeats."""
        index = np.flatnonzero(among)[np.argmin(rows[among])]
        return [self._place(self._numbers[int(each[index])]) for each in (rows, firsts)]

    def _repeated(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows whose prompt came before, and for each the first row with that prompt."""
        digests = np.frombuffer(self._exact, dtype=np.uint64)
        order = np.argsort(digests, kind="stable")  # of equal prompts, the first row stays first
        again = np.flatnonzero(digests[order][1:] == digests[order][:-1]) + 1
        starts = np.arange(len(order))
        starts[again] = 0
        starts = np.maximum.accumulate(starts)
        return order[again], order[starts[again]]


def number_of(data: bytes) -> int:
    """64 bits that stand for `data` in comparisons: ten million prompts share one by accident once in 370,000 files."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def _answer_key(value: object) -> bytes:
    """Equal for answers that are the same: of worked solutions the marked answer counts, of numbers their value."""
    if isinstance(value, str):
        text = marked_answer(value)
        number = answer_number(text)
        return f"text {plain_latex(text)}".encode() if number is None else f"number {number}".encode()
    number = number_in(value)
    return _canonical(value) if number is None else f"number {number}".encode()


def _canonical(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True).encode()
