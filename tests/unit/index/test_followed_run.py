"""A run's ledger from its board: whole, in steps, over restarts, and with boards and learners that lie."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from p2prl.errors import P2PRLError, RemoteProtocolError, UnreachableError
from p2prl.index.board_client import MAX_HEAD_ANSWER_BYTES, MAX_PAGE_BYTES
from p2prl.index.followed_run import FollowedRun, RunLimits
from p2prl.index.people_totals import contributions
from p2prl.protocol.envelope import seal
from p2prl.protocol.ledger_messages import LedgerHead
from p2prl.scoreboard.ledger.known_run import open_run_manifest
from p2prl.scoreboard.web.api import create_app
from p2prl_lab.testing.ledger_boards import (
    ENTRIES,
    HEAD,
    AnsweringWeb,
    entries_json,
    head_json,
    ledger_board,
)
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, identity, receipt, sample_run
from tests.unit.scoreboard.asgi import ask

WIDE = RunLimits(look_bytes=1 << 30, run_bytes=1 << 30)
WRITER = sample_run(7, steps=60)

Follow = Callable[..., FollowedRun]


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    """Open the run of a writer; each call closes the one before."""
    with ExitStack() as stack:

        def start(writer: LedgerWriter = WRITER, bounds: RunLimits = WIDE) -> FollowedRun:
            stack.pop_all().close()
            followed = FollowedRun(tmp_path / "index" / "a.db", writer.run, bounds, manifest=writer.manifest_raw)
            stack.callback(followed.close)
            return followed

        yield start


def told(writer: LedgerWriter) -> object:
    """What a board beside the learner would say."""
    fold = open_run_manifest(writer.manifest_raw).new_fold()
    for raw in writer.entries:
        fold.follow(raw)
    return contributions(fold.state())


def some_run(groups: int, *, name: str = "ann", per_step: int = 1) -> LedgerWriter:
    writer = LedgerWriter()
    for step in range(groups // per_step):
        writer.receipts(step, *(receipt(step * per_step + each, identity(name)) for each in range(per_step)))
    return writer


def test_a_board_of_the_product_is_read_to_its_end(follow: Follow) -> None:
    app = create_app(MemorySource(WRITER, signed_head=WRITER.signed_head(finished=True)))
    followed = follow()
    assert followed.look(AnsweringWeb(lambda path: ask(app, path).body).board) == ""
    part = followed.part()
    assert part.people == told(WRITER)
    assert (part.height, part.is_finished, part.incident) == (len(WRITER.entries), True, "")
    assert (part.name, part.owner, part.parameters) == ("chain-of-sums", WRITER.learner.peer_id, 12_000_000)


def test_nothing_is_asked_for_twice_and_a_restart_goes_on_where_it_was(follow: Follow) -> None:
    writer = some_run(200)
    followed, web = follow(writer), ledger_board(writer)
    assert followed.look(web.board) == ""
    assert [path for path in web.asked if path != HEAD] == [
        f"{ENTRIES}?from={first}&limit=64" for first in (0, 64, 128, 192)
    ]
    web.asked.clear()
    assert followed.look(web.board) == ""
    followed = follow(writer)
    assert followed.part().people == told(writer)
    assert followed.look(web.board) == ""
    assert web.asked == [HEAD, HEAD]
    writer.receipts(999, receipt(999, identity("bob")))
    assert followed.look(web.board) == ""
    assert web.asked[2:] == [HEAD, f"{ENTRIES}?from=200&limit=64"]
    assert followed.part().people == told(writer)


def test_a_ledger_longer_than_a_look_comes_in_several(follow: Follow) -> None:
    writer = some_run(300)
    followed, web = follow(writer, RunLimits(look_bytes=30_000, run_bytes=1 << 30)), ledger_board(writer, most=16)
    looks = 1
    while (fault := followed.look(web.board)) != "":
        assert fault == "its ledger is being read"
        assert followed.part().people == {}
        looks += 1
    assert followed.part().people == told(writer)
    largest = max(len(entries_json(writer.entries[first : first + 16])) for first in range(0, 300, 16))
    assert looks >= sum(len(entries_json([raw])) for raw in writer.entries) // (30_000 + largest)


def test_a_ledger_has_a_most_on_disk_and_what_was_proven_counts(follow: Follow) -> None:
    writer = some_run(40)
    followed = follow(writer, RunLimits(look_bytes=1 << 30, run_bytes=sum(map(len, writer.entries)) + 2_000))
    assert followed.look(ledger_board(writer).board) == ""
    counted = told(writer)
    for step in range(40, 100):
        writer.receipts(step, receipt(step, identity("ann")))
    assert "the rest is not read" in followed.look(ledger_board(writer).board)
    assert followed.part().people == counted
    assert followed.look(ledger_board(writer).board, has_room=lambda: False).startswith("this index has no room")


def test_entries_too_long_for_one_answer_come_in_smaller_ones(follow: Follow) -> None:
    writer = some_run(64)
    web = ledger_board(writer)
    honest = web._answer
    asked: list[int] = []

    def answer(path: str) -> bytes | None:
        if path.startswith(ENTRIES):
            asked.append(int(path.rpartition("=")[2]))
            if asked[-1] > 8:
                return bytes(MAX_PAGE_BYTES + 1)
        return honest(path)

    followed = follow(writer)
    assert followed.look(AnsweringWeb(answer).board) == ""
    assert asked[:4] == [64, 32, 16, 8]
    assert followed.part().people == told(writer)
    longer = head_json(some_run(65).signed_head())
    web = AnsweringWeb(lambda path: longer if path == HEAD else bytes(MAX_PAGE_BYTES + 1))
    with pytest.raises(UnreachableError):
        followed.look(web.board)
    assert len(web.asked) <= 8


def test_a_board_that_invents_entries_adds_nothing_and_an_honest_one_is_believed_afterwards(follow: Follow) -> None:
    writer, invented = some_run(130), some_run(130, name="friend")
    mixed = [*writer.entries[:70], *invented.entries[70:]]
    followed = follow(writer)
    for entries in (invented.entries, mixed, [], writer.entries[:90], writer.entries[::-1]):
        lying = LedgerWriter()
        lying.entries, lying.head = entries, writer.head
        with pytest.raises(RemoteProtocolError, match="did not sign"):
            followed.look(ledger_board(lying, head=writer.signed_head()).board)
        assert followed.part().people == {}
    assert followed.look(ledger_board(writer).board) == ""
    assert followed.part().people == told(writer)
    assert followed.incident == ""


def test_a_head_of_another_key_or_run_proves_nothing(follow: Follow) -> None:
    writer, now = some_run(9), LedgerWriter().now
    body = LedgerHead(9, writer.head, 0, False)
    followed = follow(writer)
    for head in (
        seal(identity("thief"), body, run=writer.run, now=now),
        seal(writer.learner, body, run=bytes(32), now=now),
        writer.signed_head()[:-1],
        b"junk",
    ):
        with pytest.raises(P2PRLError):
            followed.look(ledger_board(writer, head=head).board)
    assert followed.look(ledger_board(writer, head=b"").board) == "its board has no head that the learner signed yet"
    assert followed.part().people == {}


def test_another_run_s_manifest_is_refused_in_a_file(follow: Follow, tmp_path: Path) -> None:
    follow().close()
    other = sample_run(1, steps=1, goal="Something else")
    with pytest.raises(P2PRLError):
        FollowedRun(tmp_path / "index" / "a.db", other.run, WIDE, manifest=other.manifest_raw)


def test_two_histories_take_a_run_out_for_good(follow: Follow) -> None:
    writer, other = some_run(20), some_run(20, name="friend")
    followed = follow(writer)
    assert followed.look(ledger_board(writer).board) == ""
    fault = followed.look(ledger_board(other).board)
    assert "two different histories of 20 ledger entries" in fault
    again, web = follow(writer), ledger_board(writer)
    assert again.look(web.board) == fault
    assert web.asked == [], "a run that contradicted itself is asked no more"
    assert again.part().incident == fault


def test_a_shorter_history_that_contradicts_the_longer_one_is_a_fork_too(follow: Follow) -> None:
    writer, other = some_run(20), some_run(12, name="friend")
    followed = follow(writer)
    assert followed.look(ledger_board(writer).board) == ""
    assert "contradicts" in followed.look(ledger_board(other).board)


def test_an_older_head_of_the_same_history_is_no_fork(follow: Follow) -> None:
    writer = some_run(20)
    older = writer.signed_head()
    for step in range(20, 25):
        writer.receipts(step, receipt(step, identity("ann")))
    followed = follow(writer)
    assert followed.look(ledger_board(writer).board) == ""
    assert followed.look(ledger_board(writer, head=older).board) == ""
    assert followed.part().people == told(writer)


def test_an_edited_file_is_read_up_to_the_edit_and_mended(follow: Follow, tmp_path: Path) -> None:
    writer = some_run(30)
    assert follow(writer).look(ledger_board(writer).board) == ""
    follow(writer).close()
    forged = some_run(30, name="friend")
    with sqlite3.connect(tmp_path / "index" / "a.db") as database:
        database.execute("UPDATE ledger SET raw = ? WHERE height = 12", (forged.entries[12],))
    database.close()
    followed = follow(writer)
    assert followed.part().height <= 12
    assert followed.look(ledger_board(writer).board) == ""
    assert followed.part().people == told(writer)


_DEEP = 100_000


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"\xff\xfe",
        b'{"signed_head_base64": 3}',
        b'{"signed_head_base64": "no base64!"}',
        b'{"signed_head_base64": "\xc3\xa9"}',
        b'{"signed_head_base64": "' + b"A" * 1_000 + b'"}',
        b"[" * 10_000,
        b'{"x": ' + b"[" * 10_000,
        bytes(MAX_HEAD_ANSWER_BYTES + 1),
    ],
    ids=range(11),
)
def test_an_answer_that_is_no_head_is_refused_in_a_sentence(follow: Follow, body: bytes) -> None:
    with pytest.raises(UnreachableError):
        follow().look(AnsweringWeb(lambda _: body).board)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b'{"entries_base64": {}}',
        b'{"entries_base64": ["no base64!"]}',
        b'{"entries_base64": ' + b"[" * _DEEP,
        b'{"x": ' + b"[" * _DEEP + b"]" * _DEEP + b', "entries_base64": []}',
        b'{"x": ' + b'{"y": ' * _DEEP,
        json.dumps({"entries_base64": ["AAAA"] * 100_000}).encode(),
        json.dumps({"entries_base64": [""] * 64}).encode(),
    ],
    ids=range(9),
)
def test_an_answer_that_is_no_page_is_refused_in_a_sentence(follow: Follow, body: bytes) -> None:
    followed = follow()
    head = head_json(WRITER.signed_head())
    web = AnsweringWeb(lambda path: head if path == HEAD else body)
    with pytest.raises((UnreachableError, RemoteProtocolError)):
        followed.look(web.board)
    assert len(web.asked) == 2
    assert followed.part().people == {}
