"""Regular expressions in time linear in the text: the adapter of RE2 (`google-re2`), and the scorers on it.

Python's own `re` backtracks: `(a+)+$` on 30 characters of a stranger's answer takes minutes.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2prl.errors import ConfigError
from p2prl.tasks.data.packed_data import Row
from p2prl.tasks.scorers.answer_text import answers_equal, marked_answer, right_text
from p2prl.tasks.scorers.extras import import_extra

MAX_PROGRAM = 1_000
"""Instructions of a compiled pattern. Without room for its automaton RE2 does one step per instruction and byte: about
a second for 1,000 instructions and the longest completion."""

_MEMORY_BYTES = 4 * 1024 * 1024


class LinearPattern:
    """A compiled pattern in RE2's syntax. `.` matches line ends too; `^` and `$` are the ends of the text."""

    def __init__(self, pattern: str, *, scorer: str) -> None:
        """`ConfigError` for a pattern that RE2 refuses (look-around, back-references), too large, or of many groups."""
        re2 = import_extra("re2", "scorers", scorer=scorer)
        options = re2.Options()
        options.max_mem, options.dot_nl, options.log_errors = _MEMORY_BYTES, True, False
        try:
            self._compiled = re2.compile(pattern.encode(), options)
        except (re2.error, UnicodeEncodeError) as error:
            raise ConfigError(
                f"{scorer}: the pattern {pattern[:80]!r} is refused: {_message(error)}",
                remedy="Write it in RE2's syntax, which has no look-around and no back-references.",
            ) from error
        if self._compiled.programsize > MAX_PROGRAM:
            raise ConfigError(
                f"{scorer}: the pattern compiles to {self._compiled.programsize} steps, more than {MAX_PROGRAM}",
                remedy="Write smaller repetition counts: `{1,1000}` is a thousand copies.",
            )
        self.groups: int = self._compiled.groups

    def found(self, text: str) -> bool:
        """Whether the pattern occurs in the text."""
        return self._compiled.search(text.encode("utf-8", "replace")) is not None

    def first(self, text: str) -> str | None:
        """Group 1 of the first match, or all of it for a pattern without groups. None without a match."""
        match = self._compiled.search(text.encode("utf-8", "replace"))
        part = None if match is None else match.group(min(self.groups, 1))
        return None if part is None else part.decode("utf-8", "replace")


def _message(error: Exception) -> str:
    detail = error.args[0] if error.args else error
    return detail.decode("utf-8", "replace") if isinstance(detail, bytes) else str(detail)


@dataclass(frozen=True, kw_only=True, slots=True)
class RegexAnswer:
    """`regex`: accepts a text whose part found by the pattern is the answer.

    The part is group 1 of the first match, or the whole match without a group. `Answer: ([^\\n]+)` finds `42` in
    `Answer: 42`; a leading `.*` finds the last one. Compared as `boxed` does: as numbers, else as text.
    """

    pattern: LinearPattern
    column: str
    tolerance: float = 0.0

    def accepts(self, row: Row, text: str) -> bool:
        right = marked_answer(right_text(row, self.column))
        answer = self.pattern.first(text)
        return answer is not None and answers_equal(answer, right, self.tolerance)

    def right_answer(self, row: Row) -> str | None:
        """None: a pattern cannot be run backwards."""
        right_text(row, self.column)
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """`format`: accepts a text in which the pattern occurs, whatever the answer is.

    `^<think>.*</think>[^<]+$` accepts `<think>2+2</think>4` and refuses `4`.
    """

    pattern: LinearPattern

    def accepts(self, row: Row, text: str) -> bool:  # noqa: ARG002  # the interface of judges
        return self.pattern.found(text)

    def right_answer(self, row: Row) -> str | None:  # noqa: ARG002
        """None: a pattern cannot be run backwards."""
        return None
