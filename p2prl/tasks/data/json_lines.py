"""Reader of JSON lines: one object a line, UTF-8."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from p2prl.errors import ConfigError

MAX_ROW_BYTES = 8 * 1024 * 1024
"""Longest line. A hundred times the longest prompt that a run can have; more is a file without line ends."""

_MARK = "\ufeff"
"""Byte order mark, which some editors write at the start of a file."""


class JsonLinesSource:
    """A JSON lines file. Blank lines are accepted at its end only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = max(1, path.stat().st_size)
        self._read_bytes = 0
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant)

    @property
    def share_done(self) -> float:
        """Share of the file that has been read, 0..1."""
        return min(1.0, self._read_bytes / self._size)

    def place(self, number: int) -> str:
        """Where row `number` is."""
        return f"{self._path}, line {number + 1}"

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row's columns. `ConfigError` naming the first line that is no JSON object."""
        self._read_bytes, number, blank = 0, 0, False
        with self._path.open("rb") as file:
            while line := file.readline(MAX_ROW_BYTES + 1):
                self._read_bytes += len(line)
                if line.isspace():
                    blank = True
                    continue
                if blank:
                    raise self._unreadable(number, "the line is empty", "Remove the empty line.")
                yield self._row(number, line)
                number += 1

    def _row(self, number: int, line: bytes) -> dict[str, Any]:
        if len(line) > MAX_ROW_BYTES:
            raise self._unreadable(number, f"the line has more than {MAX_ROW_BYTES:,} bytes", "Write one row a line.")
        try:
            text = line.decode().rstrip("\r\n")  # past the end of the line, columns would count from 1 again
        except UnicodeDecodeError as error:
            raise self._unreadable(
                number, f"byte {error.start + 1} of the line is not UTF-8", "Save the file as UTF-8."
            ) from error
        try:
            row = self._decoder.decode(text.removeprefix(_MARK) if number == 0 else text)
        except json.JSONDecodeError as error:
            seen = f"{error.msg[0].lower()}{error.msg[1:]}".removesuffix(" at")
            reason = f"not JSON: {seen} at column {error.colno}"
            raise self._unreadable(number, reason, "Write one JSON object a line.") from error
        except RecursionError as error:
            raise self._unreadable(number, "the JSON is nested too deep", "Flatten the row.") from error
        except _NotFiniteError as error:
            raise self._unreadable(number, str(error), "Remove the row, or give it a number.") from error
        except ValueError as error:  # of int()
            reason = f"a number has more than {sys.get_int_max_str_digits():,} digits"
            raise self._unreadable(number, reason, "Write it as a text.") from error
        if not isinstance(row, dict):
            raise self._unreadable(number, "not a JSON object", 'Write rows as {"prompt": …, "answer": …}.')
        return row

    def _unreadable(self, number: int, reason: str, remedy: str) -> ConfigError:
        return ConfigError(f"{self.place(number)}: {reason}", remedy=remedy)


class _NotFiniteError(ValueError):
    """NaN or an infinity, which JSON does not have."""


def _refuse_constant(name: str) -> NoReturn:
    raise _NotFiniteError(f"{name} is no JSON number")
