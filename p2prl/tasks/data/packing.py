"""Packing of a data set: read, checked, rendered, encoded and written in one pass, in bounded memory.

The same rows, model and options give the same bytes on any machine. The caller brings the model's part: a function that
renders a prompt, and one that encodes texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from p2prl.errors import ConfigError
from p2prl.protocol import limits
from p2prl.tasks.data.checked_rows import CheckedRow, CheckedRows, checks_answers
from p2prl.tasks.data.columns import ANSWER
from p2prl.tasks.data.data_plan import (
    HELD_OUT_PROMPTS_FILE,
    HELD_OUT_ROWS_FILE,
    PROMPTS_FILE,
    ROWS_FILE,
    DataPlan,
)
from p2prl.tasks.data.data_source import DataSource, open_source
from p2prl.tasks.data.held_out_rows import is_held_out
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.data.prompts import CUT, Prompt
from p2prl.tasks.data.split_packer import LongPrompts, PromptRoom, SplitPacker
from p2prl.tasks.data.tool_messages import Tool
from p2prl.tasks.scorers.answer_text import marked_answer

_MORE_ROOM = "Choose a smaller --max-new-tokens, or a model with a longer context."
_BATCH_ROWS = 256
_BATCH_CHARS = 1 << 20
"""Rows and characters encoded in one call, which uses all cores. Characters of all columns count: a batch is held in
memory."""


class PromptEncoder(Protocol):
    """The model's part: its chat template and its tokenizer."""

    @property
    def unknown_id(self) -> int | None:
        """Token of texts that the tokenizer does not know; None if it knows every text."""
        ...

    def render(self, prompt: Prompt, tools: Sequence[Tool] = ()) -> str:
        """The text whose tokens are the prompt, with a `CUT` before each control token that is plain text.

        `ConfigError` when the template refuses it, or leaves out `tools`.
        """
        ...

    def encode_all(self, texts: Sequence[str]) -> Sequence[Sequence[int]]:
        """Tokens of rendered texts."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedData:
    """A packed data set."""

    rows: int
    held_out_rows: int
    """0 if none are held out."""
    longest: int
    """Tokens of the longest prompt, held-out ones included."""
    notices: tuple[str, ...]
    """Sentences about the data for the user."""


class DataPacker:
    """Packs one data set. The files are complete after `finish`."""

    def __init__(
        self,
        plan: DataPlan,
        directory: Path,
        encoder: PromptEncoder,
        room: PromptRoom,
        *,
        problem: Callable[[Row], str] = lambda row: "",  # noqa: ARG005  # no scorer, no problem
    ) -> None:
        """`directory` takes the packed files; `problem` says why the scorers cannot use a row, empty if they can.

        `ConfigError` when a source does not exist or has another format.
        """
        self.plan = plan
        self._problem = problem
        self._encoder = encoder
        self._room = room
        self._source = open_source(plan.path)
        self._held_source = open_source(plan.held_out) if plan.held_out is not None else None
        place, held_place = self._source.place, (self._held_source or self._source).place
        self.training = SplitPacker(directory / PROMPTS_FILE, directory / ROWS_FILE, place, room)
        self.held_out: SplitPacker | None = None
        if plan.held_out is not None or plan.eval_split > 0:
            prompts, rows = directory / HELD_OUT_PROMPTS_FILE, directory / HELD_OUT_ROWS_FILE
            self.held_out = SplitPacker(prompts, rows, held_place, room)
        self._notices: list[str] = []
        self._tokens = self._unknown = 0

    def close(self) -> None:
        """Give temporary files back."""
        for split in self._splits():
            split.close()

    def pack(self, on_progress: Callable[[str, float], None], *, most_bytes: int = limits.MAX_DATA_BYTES) -> int:
        """Read and pack all rows; the bytes they take, at most `most_bytes`. `ConfigError` for the first fault."""
        held_out = self.held_out
        if self._held_source is not None and held_out is not None:
            for row, rendered, token_ids in self._packable(CheckedRows(self._held_source, self.plan)):
                held_out.add(row, rendered, token_ids)
                self._advance(self._held_source, row, on_progress, most_bytes)
        rows = CheckedRows(self._source, self.plan)
        for row, rendered, token_ids in self._packable(rows):
            self._split_of(row).add(row, rendered, token_ids)
            self._advance(self._source, row, on_progress, most_bytes)
        self._tell(rows)
        self._refuse_long()
        return sum(split.size_bytes for split in self._splits())

    def finish(self) -> PackedData:
        """Write the files. `ConfigError` when rows contradict each other, or none are left."""
        counts = []
        for name, split in zip(("to train on", "for evaluation"), self._splits(), strict=False):
            if not len(split):
                raise self._none_left(name, split.long)
            count, notices = split.finish(drop_conflicts=self.plan.drop_conflicts)
            counts.append(count)
            self._notices += notices
        return PackedData(
            rows=counts[0],
            held_out_rows=counts[1] if self.held_out is not None else 0,
            longest=max(split.longest for split in self._splits()),
            notices=tuple(self._notices),
        )

    def _none_left(self, name: str, long: LongPrompts) -> ConfigError:
        said = f"{self.plan.task}: no row is left {name}"
        if not long.count:
            return ConfigError(said, remedy="Give more rows, or another --eval-split.")
        said += f": {long.count:,} {'has a prompt that is' if long.count == 1 else 'have prompts that are'} too long"
        return ConfigError(said, remedy=_MORE_ROOM)

    def _splits(self) -> list[SplitPacker]:
        return [self.training] if self.held_out is None else [self.training, self.held_out]

    def _split_of(self, row: CheckedRow) -> SplitPacker:
        held_out = self.held_out
        return self.training if held_out is None or not is_held_out(row.prompt, self.plan.eval_split) else held_out

    def _advance(
        self, source: DataSource, row: CheckedRow, on_progress: Callable[[str, float], None], most_bytes: int
    ) -> None:
        """Report progress now and then, and stop before the data is larger than a run may have."""
        if row.number % _BATCH_ROWS:
            return
        on_progress(f"packing {self.plan.task}", source.share_done)
        if sum(split.size_bytes for split in self._splits()) > most_bytes:
            raise ConfigError(
                f"{row.place}: the data sets take more than {limits.MAX_DATA_BYTES:,} bytes together",
                remedy="Use fewer rows, or leave out columns that no scorer reads.",
            )

    def _tell(self, rows: CheckedRows) -> None:
        """Notices about columns and unknown tokens."""
        if rows.chosen is not None:
            answers = f"answers from {rows.chosen.answer!r}" if rows.chosen.answer else "no answers"
            self._notices.append(f"{self.plan.task}: prompts from the column {rows.chosen.prompt!r}, {answers}.")
        if self._unknown:
            share = self._unknown / max(1, self._tokens)
            self._notices.append(f"The tokenizer does not know {share:.1%} of the prompts' tokens.")

    def _packable(self, rows: CheckedRows) -> Iterator[tuple[CheckedRow, str, Sequence[int]]]:
        """Rows with their rendered texts and tokens, each checked against the model."""
        unknown = self._encoder.unknown_id
        for row, rendered, token_ids in self._encoded(rows):
            self._check_answer(row)
            if problem := self._problem({**row.columns, "prompt": row.prompt}):
                raise ConfigError(
                    f"{row.place}: {problem}",
                    remedy="Correct the row, name another column with --answer-column, or choose another --scorer.",
                )
            count = 0 if unknown is None else list(token_ids).count(unknown)
            if count and count >= len(token_ids) - 1:  # all but the mark of the beginning
                raise ConfigError(
                    f"{row.place}: the tokenizer knows nothing in the prompt",
                    remedy="Choose a model whose tokenizer knows the language of the data.",
                )
            self._unknown += count
            self._tokens += len(token_ids)
            yield row, rendered, token_ids

    def _encoded(self, rows: Iterable[CheckedRow]) -> Iterator[tuple[CheckedRow, str, Sequence[int]]]:
        """Rows with their rendered texts and tokens, encoded many at a time."""
        batch: list[tuple[CheckedRow, str]] = []
        characters = 0
        for row in rows:
            batch.append((row, self._rendered(row)))
            characters += len(batch[-1][1]) + row.size_bytes
            if len(batch) >= _BATCH_ROWS or characters >= _BATCH_CHARS:
                yield from self._encode(batch)
                batch, characters = [], 0
        yield from self._encode(batch)

    def _encode(self, batch: list[tuple[CheckedRow, str]]) -> Iterator[tuple[CheckedRow, str, Sequence[int]]]:
        encoded = self._encoder.encode_all([rendered for _, rendered in batch]) if batch else ()
        for (row, rendered), token_ids in zip(batch, encoded, strict=True):
            yield row, rendered.replace(CUT, ""), token_ids

    def _rendered(self, row: CheckedRow) -> str:
        try:
            return self._encoder.render(row.prompt, row.tools)
        except ConfigError as error:
            raise ConfigError(f"{row.place}: {error}", remedy=error.remedy) from error

    def _check_answer(self, row: CheckedRow) -> None:
        answer, most = row.columns.get(ANSWER), self._room.longest_answer
        if not checks_answers(self.plan) or not isinstance(answer, str):
            return
        answer = marked_answer(answer)  # of a worked solution, only that is compared
        # A token has a byte or more: most answers are short enough without counting.
        if len(answer) * 4 <= most or len(answer.encode()) <= most:
            return
        (token_ids,) = self._encoder.encode_all([answer])
        if len(token_ids) > most:
            raise ConfigError(
                f"{row.place}: the answer has {len(token_ids):,} tokens, and a completion has room for {most:,}",
                remedy="Remove the row, or name another column with --answer-column.",
            )

    def _refuse_long(self) -> None:
        """`ConfigError` for prompts that do not fit, or a notice if they were to be left out."""
        for split in self._splits():
            long = split.long
            if not long.count:
                continue
            if self.plan.drop_long:
                noun = "row with a longer prompt was" if long.count == 1 else "rows with longer prompts were"
                self._notices.append(f"{long.count:,} {noun} left out; the first: {long.first}.")
                continue
            raise ConfigError(_too_long(long, self._room), remedy=_shorter(long.longest, self._room))


def _too_long(long: LongPrompts, room: PromptRoom) -> str:
    subject = f"{long.first}: the prompt has {long.longest:,} tokens"
    if long.count > 1:
        subject = f"{long.first}, and {long.count - 1:,} more: the prompts have up to {long.longest:,} tokens"
    if room.context is None or room.longest_prompt == limits.MAX_PROMPT_TOKENS:
        return f"{subject}, more than {limits.MAX_PROMPT_TOKENS:,}"
    return f"{subject}, which with {room.max_new_tokens:,} new ones exceed the model's {room.context:,}"


def _shorter(longest: int, room: PromptRoom) -> str:
    """The remedy for prompts that are too long."""
    remedies = []
    if room.context is not None and longest <= limits.MAX_PROMPT_TOKENS and room.context > longest:
        remedies.append(f"give --max-new-tokens {room.context - longest}")
    if room.longest_prompt > 0:
        remedies.append("leave such rows out with --drop-long")
    text = ", or ".join(remedies)
    return f"{text[0].upper()}{text[1:]}." if text else _MORE_ROOM
