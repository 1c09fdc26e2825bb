"""Ledgers of listed runs, followed by an index: which ones, over real sockets, beside some that hang, over restarts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from p2prl.clock import SystemClock
from p2prl.index import ledger_following, people_state
from p2prl.index.followed_run import FollowedRun
from p2prl.index.index_state import IndexState
from p2prl.index.ledger_choice import LedgerLimits, chosen_rows
from p2prl.index.ledger_following import LedgerFollowing
from p2prl.index.listing_table import HERE, Kept, Row, mirror_source
from p2prl.index.people_totals import RunPart
from p2prl.index.public_web import PublicWeb
from p2prl.protocol.identity import PeerId
from p2prl.protocol.listing import run_id
from p2prl.scoreboard.web.service import BoardServer
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.swarm.peers.subnets import Subnet
from p2prl_lab.testing.ledger_boards import ENTRIES, HEAD, entries_json, head_json, ledger_board
from p2prl_lab.testing.listed_runs import NOW, ListedRun, many_runs
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, identity, receipt
from tests.unit.index.servers import Answering

LOCAL = PublicWeb(DialRules(is_local=True))
RUN = ListedRun()


class Told(dict[str, str]):
    """What is said of ledgers, and whether anything was yet."""

    def __init__(self) -> None:
        super().__init__()
        self.was_told = threading.Event()

    def __setitem__(self, key: str, value: str) -> None:
        super().__setitem__(key, value)
        self.was_told.set()


def row_of(run: ListedRun, *, board: str = "https://board.example", source: str = "192.0.2.0/24") -> Row:
    opened = run.opened(board=board)
    return Row(Kept(opened, run.manifest_raw, Subnet(source), Subnet(source), NOW), 1)


def test_runs_that_count_come_first_and_others_take_turns_by_network_and_board() -> None:
    bounds = LedgerLimits(counted_runs=2, other_runs=4)
    mine = [ListedRun(f"mine-{number}", f"me-{number}") for number in range(3)]
    owners = frozenset(run.learner.peer_id for run in mine)
    flood = [row_of(run, board=f"https://b{place}.example") for place, run in enumerate(many_runs(40))]
    one_victim = [
        row_of(
            ListedRun(f"v-{number}", f"v-{number}"),
            board=f"https://victim.example/{number}",
            source=f"10.{number}.0.0/24",
        )
        for number in range(20)
    ]
    late = [row_of(ListedRun("late", "late"), board="https://late.example", source="198.51.100.0/24")]
    mirrored = [row_of(ListedRun("far", "far"), board="https://far.example", source=mirror_source("https://m"))]
    silent = [row_of(ListedRun("silent", "silent"), board="", source="203.0.113.0/24")]
    rows = [*silent, *flood, *one_victim, *late, *mirrored, *map(row_of, mine)]
    chosen = chosen_rows(rows, owners, bounds)
    assert chosen[:2] == [row_of(run) for run in mine[:2]]
    assert chosen[2:] == [flood[0], one_victim[0], *late, *mirrored]
    assert chosen_rows(silent, owners, bounds) == []


def writer_of(run: ListedRun, groups: int, *, name: str = "ann") -> LedgerWriter:
    writer = LedgerWriter(run.manifest)
    writer.learner, writer.manifest_raw, writer.run = run.learner, run.manifest_raw, run.run
    for number in range(groups):
        writer.receipts(number, receipt(number, identity(name)))
    return writer


Following = Callable[..., tuple[IndexState, LedgerFollowing]]


class Heard:
    """What reached the people of an index, for tests that wait for it."""

    def __init__(self) -> None:
        self.parts: dict[str, RunPart] = {}
        self._news = threading.Condition()

    def note(self, part: RunPart) -> None:
        with self._news:
            self.parts[part.name] = part
            self._news.notify_all()

    def tokens(self, name: str, tokens: int) -> bool:
        """Wait until a run's people have so many tokens."""

        def has() -> bool:
            part = self.parts.get(name)
            return part is not None and sum(given.tokens for given in part.people.values()) == tokens

        with self._news:
            return self._news.wait_for(has, timeout=60)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def following(tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Iterator[Following]:
    """An index's state, and what follows ledgers for it, with one folder for all of them."""
    monkeypatch.setattr(people_state, "RECOUNT_S", 0.0)
    monkeypatch.setattr(ledger_following, "LOOK_S", 0.01)
    with ExitStack() as stack:

        def start(
            *owners: PeerId, web: PublicWeb = LOCAL, limits: LedgerLimits | None = None
        ) -> tuple[IndexState, LedgerFollowing]:
            stack.pop_all().close()
            state = IndexState(SystemClock(), owners=frozenset(owners))
            noted = state.people.note

            def note(part: RunPart) -> None:
                noted(part)
                heard.note(part)

            monkeypatch.setattr(state.people, "note", note)
            made = LedgerFollowing(state, tmp_path / "index", web, limits)
            stack.callback(made.stop)
            return state, made

        yield start


@pytest.fixture
def boards() -> Iterator[Callable[[LedgerWriter], str]]:
    """Start a board of the product over a writer; its address."""
    with ExitStack() as stack:

        def start(writer: LedgerWriter) -> str:
            source = MemorySource(writer, signed_head=writer.signed_head())
            board, ready = BoardServer(source, host="127.0.0.1", port=0), threading.Event()
            thread = threading.Thread(target=board.serve, args=(lambda _: ready.set(),))
            thread.start()
            stack.callback(thread.join)
            stack.callback(board.stop)
            assert ready.wait(30)
            return board.url.rstrip("/")

        yield start


def put(index: IndexState, run: ListedRun, board: str, *, later_s: float = 0.0, **claims: Any) -> None:
    index.offer(run.signed(now=time.time() + later_s, board=board, **claims), run.manifest_raw, HERE)


def test_a_person_is_found_by_the_ledger_of_a_board_over_sockets(
    following: Following, boards: Callable[[LedgerWriter], str], heard: Heard
) -> None:
    state, made = following(RUN.learner.peer_id)
    put(state, RUN, boards(writer_of(RUN, 70)))
    made.choose()
    assert heard.tokens(RUN.name, 7_000)
    totals = state.people.totals()
    assert {key: person.tokens for key, person in totals.people.items()} == {identity("ann").public_key: 7_000}
    assert list(totals.ranks.values()) == [1]


def test_an_index_that_others_reach_asks_no_board_of_its_own_machine(
    following: Following, answering: Answering, heard: Heard
) -> None:
    state, made = following(RUN.learner.peer_id, web=PublicWeb())
    put(state, RUN, answering({HEAD: head_json(writer_of(RUN, 1).signed_head())}))
    told = state.people.ledgers = Told()
    made.choose()
    assert told.was_told.wait(60)
    assert "only its own network may dial" in state.people.ledgers[run_id(RUN.run)]
    assert heard.parts[RUN.name].people == {}


def test_boards_that_hang_or_lie_hold_up_no_other(
    following: Following, boards: Callable[[LedgerWriter], str], answering: Answering, heard: Heard
) -> None:
    state, made = following(web=PublicWeb(DialRules(is_local=True), answer_s=0.2), limits=LedgerLimits(other_runs=40))
    hanging, junk = answering({HEAD: None}), answering({HEAD: b"[" * 10_000})
    for place, run in enumerate(many_runs(8)):
        put(state, run, hanging if place % 2 else junk)
    put(state, RUN, boards(writer_of(RUN, 10)))
    made.choose()
    assert heard.tokens(RUN.name, 1_000)
    others = [part for name, part in heard.parts.items() if name != RUN.name]
    assert [part.people for part in others] == [{}] * len(others)


def test_a_restart_knows_the_people_without_a_board_and_a_run_that_left_stays(
    following: Following, boards: Callable[[LedgerWriter], str], heard: Heard
) -> None:
    state, made = following(RUN.learner.peer_id)
    put(state, RUN, boards(writer_of(RUN, 12)))
    made.choose()
    assert heard.tokens(RUN.name, 1_200)
    put(state, RUN, "", later_s=1.0, state="ended")
    made.choose()
    assert state.people.totals().people[identity("ann").public_key].tokens == 1_200
    made.stop()
    heard.parts.clear()
    state, made = following(RUN.learner.peer_id)
    made.load()
    assert state.people.totals().people[identity("ann").public_key].tokens == 1_200
    state, made = following()
    made.load()
    assert state.people.totals().people == {}
    assert [run.name for run in state.people.totals().runs] == [RUN.name]


def test_ledgers_that_do_not_count_make_way_and_those_that_do_stay(
    following: Following, answering: Answering, heard: Heard, tmp_path: Path
) -> None:
    others = many_runs(3)
    bounds = LedgerLimits(other_runs=1)
    for run in (RUN, *others):
        writer = writer_of(run, 1)
        state, made = following(RUN.learner.peer_id, limits=bounds)
        made.load()
        put(
            state,
            run,
            answering(
                {HEAD: head_json(writer.signed_head()), f"{ENTRIES}?from=0&limit=64": entries_json(writer.entries)}
            ),
        )
        made.choose()
        assert heard.tokens(run.name, 100)
        made.choose()
        made.stop()
    kept = sorted(path.stem for path in (tmp_path / "index").glob("*.db"))
    assert kept == sorted(run.run.hex() for run in (RUN, others[-1]))


def test_a_file_that_is_no_ledger_is_named_and_holds_up_nothing(following: Following, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / f"{RUN.run.hex()}.db").write_bytes(b"no database at all" * 100)
    (tmp_path / "index" / "notes.db").write_bytes(b"")
    state, made = following(RUN.learner.peer_id)
    made.load()
    assert list(state.people.ledgers) == [run_id(RUN.run)]
    assert "cannot open" in state.people.ledgers[run_id(RUN.run)]
    assert state.people.totals().runs == ()


def test_a_fork_takes_a_run_out_of_sums_while_the_index_runs(
    following: Following, answering: Answering, heard: Heard
) -> None:
    state, made = following(RUN.learner.peer_id)
    first, second = writer_of(RUN, 5), writer_of(RUN, 5, name="friend")
    answers = {
        HEAD: head_json(first.signed_head()),
        f"{ENTRIES}?from=0&limit=64": entries_json(first.entries),
    }
    put(state, RUN, answering(answers))
    made.choose()
    assert heard.tokens(RUN.name, 500)
    assert len(state.people.totals().ranked) == 1
    answers[HEAD] = head_json(second.signed_head())
    with heard._news:
        assert heard._news.wait_for(lambda: heard.parts[RUN.name].incident != "", timeout=60)
    totals = state.people.totals()
    assert (totals.people, totals.ranked) == ({}, ())
    assert [part.run.name for part in totals.parts(identity("ann").public_key)[1]] == [RUN.name]


def test_a_full_disk_stops_reading_and_what_is_counted_stays(
    following: Following, answering: Answering, heard: Heard
) -> None:
    web = ledger_board(writer_of(RUN, 5))
    state, made = following(RUN.learner.peer_id, limits=LedgerLimits(disk_bytes=1))
    told = state.people.ledgers = Told()
    put(state, RUN, answering({HEAD: web.get(f"https://x{HEAD}", 1 << 20)}))
    made.choose()
    assert told.was_told.wait(60)
    assert state.people.ledgers[run_id(RUN.run)] == "this index has no room for more of its ledger"
    assert heard.parts[RUN.name].people == {}


def test_a_ledger_with_a_torn_page_is_named_and_holds_up_nothing(following: Following, tmp_path: Path) -> None:
    writer, path = writer_of(RUN, 60), tmp_path / "index" / f"{RUN.run.hex()}.db"
    followed = FollowedRun(path, RUN.run, LedgerLimits().counted, manifest=RUN.manifest_raw)
    assert followed.look(ledger_board(writer).board) == ""
    followed.close()
    pages = path.read_bytes()
    path.write_bytes(pages[:4_096] + b"\xff" * (len(pages) - 8_192) + pages[-4_096:])
    state, made = following(RUN.learner.peer_id)
    made.load()
    assert list(state.people.ledgers) == [run_id(RUN.run)]
    assert state.people.totals().runs == ()
