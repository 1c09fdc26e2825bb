"""Kept answers: built once for a snapshot, never more than a bound holds, and never another snapshot's."""

from __future__ import annotations

import pytest
from fastapi import Request

from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.web import answers
from p2prl.scoreboard.web.answers import MAX_KEPT_BYTES, Answers
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, identity, receipt

PREFIX = "http://board.example/"


def request(path: str) -> Request:
    return Request(
        {
            "type": "http",
            "method": "GET",
            "scheme": "http",
            "server": ("board.example", 80),
            "path": f"/{path}",
            "query_string": b"",
            "headers": [],
        }
    )


class KeepingSource(MemorySource):
    """A source that gives the same snapshot until its ledger has grown, as those of run folders and links do."""

    def __init__(self, writer: LedgerWriter) -> None:
        super().__init__(writer)
        self._newest: tuple[int, Snapshot] | None = None

    def snapshot(self) -> Snapshot:
        height = len(self.writer.entries)
        if self._newest is None or self._newest[0] < height:
            self._newest = height, super().snapshot()
        return self._newest[1]


class Builds:
    """Answers of a size, and which of them were built."""

    def __init__(self, writer: LedgerWriter) -> None:
        self.answers = Answers(KeepingSource(writer))
        self.built: list[str] = []

    def ask(self, path: str, size: int = 10) -> bytes:
        def build(_: Snapshot) -> bytes:
            self.built.append(path)
            return bytes(size)

        return bytes(self.answers.body(request(path), build, "text/plain").body)


def test_an_answer_is_built_once_until_the_ledger_grows() -> None:
    writer = LedgerWriter()
    builds = Builds(writer)
    for path in ("a", "b", "a", "a"):
        assert builds.ask(path) == bytes(10)
    assert builds.built == ["a", "b"]
    writer.receipts(0, receipt(0, identity("ann")))
    builds.ask("a")
    assert builds.built == ["a", "b", "a"]


def test_what_is_kept_is_bounded_with_its_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MAX_KEPT_BYTES", 3 * (100 + len(PREFIX) + 1))
    builds = Builds(LedgerWriter())
    for path in "abcdabcd":
        builds.ask(path, 100)
    assert builds.built == ["a", "b", "c", "d", "d"], "three fit to the byte"
    longer = Builds(LedgerWriter())
    for path in ("a", "b", "cc", "a", "b", "cc"):
        longer.ask(path, 100)
    assert longer.built == ["a", "b", "cc", "cc"], "an address has its size too"


def test_a_hundred_pages_fit() -> None:
    builds = Builds(LedgerWriter())
    for _ in range(2):
        for number in range(100):
            builds.ask(str(number), 150_000)
    assert len(builds.built) == 100
    assert MAX_KEPT_BYTES < 20_000_000
