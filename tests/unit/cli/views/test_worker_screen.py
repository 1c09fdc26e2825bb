"""The screen of `p2prl join`: its states as committed text, and what each of them must not hide."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from p2prl.cli.views.worker_screen import WIDE, WorkerScreen
from scripts.worker_screens import FOLDER, NOW, SAMPLING, STATES, WIDTHS, screen


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("state", STATES)
def test_screens_are_those_committed(state: str, columns: int) -> None:
    """After a change of the view: python -m scripts.worker_screens, and read what has changed."""
    assert screen(state, columns) == (FOLDER / f"{state}-{columns}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("columns", [60, *WIDTHS, 200])
@pytest.mark.parametrize("state", STATES)
def test_no_line_is_wider_than_the_terminal(state: str, columns: int) -> None:
    assert max(map(len, screen(state, columns).splitlines())) <= columns


@pytest.mark.parametrize("state", STATES)
def test_the_screen_fits_a_terminal_of_24_lines(state: str) -> None:
    assert len(screen(state, 80).splitlines()) <= 24


def test_states_differ_in_words_and_not_in_color_alone() -> None:
    headings = {state: screen(state, 80).splitlines()[0] for state in STATES}
    assert headings["sampling"].endswith("● online")
    assert headings["offline"].endswith("○ OFFLINE")
    assert headings["paused"].endswith("○ RESTING")
    assert headings["learner-away"].endswith("○ online, no learner")
    assert headings["run-ended"].endswith("● run ended")
    assert "no peer answers for 4 min" in screen("offline", 120)
    assert "in about" not in screen("offline", 80), "the last pace says nothing while nobody answers"


@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("peers", [{}, {"volunteer": 9}, {"learner": 1}])
def test_after_the_end_nothing_is_promised(columns: int, peers: dict[str, int]) -> None:
    output = io.StringIO()
    worker = {**STATES["run-ended"], "announced_version": 47, "peers": peers}
    Console(file=output, width=columns, color_system=None, legacy_windows=False).print(WorkerScreen(worker, now=NOW))
    text = output.getvalue()
    for promise in ("next ", "v47", "escrow", "Ctrl-C", "p2prl pause", "OFFLINE", "unreachable"):
        assert promise not in text, promise
    assert "104 groups verified, 5,012 tokens credited" in text


@pytest.mark.parametrize("state", [state for state in STATES if state != "run-ended"])
def test_each_screen_says_how_to_stop(state: str) -> None:
    text = screen(state, 80)
    assert "Ctrl-C" in text
    assert ("p2prl resume ends a pause" in text) == (state == "paused")


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_worker_that_comes_to_rest_does_not_seem_to_work_on(columns: int) -> None:
    """For a moment the owner's order is there, and the state is still that of before."""
    output = io.StringIO()
    worker = {**SAMPLING, "resting": True}
    Console(file=output, width=columns, color_system=None, legacy_windows=False).print(WorkerScreen(worker, now=NOW))
    assert "RESTING" in output.getvalue()
    assert "coming to rest" in output.getvalue()
    assert "sampling" not in output.getvalue()
    assert "tokens/s" not in output.getvalue()


def test_two_columns_begin_at_their_width() -> None:
    narrow, wide = screen("sampling", WIDE - 1), screen("sampling", WIDE)
    assert "next     v47" in narrow.splitlines()[3]
    assert "next     v47" in wide.splitlines()[1]


def test_a_terminal_without_blocks_gets_ascii() -> None:
    written = io.BytesIO()
    output = io.TextIOWrapper(written, encoding="ascii")
    Console(file=output, width=120, color_system=None).print(WorkerScreen(SAMPLING, now=NOW))
    Console(file=output, width=80, color_system=None).print(WorkerScreen(SAMPLING, now=NOW))
    output.flush()
    assert "* online" in written.getvalue().decode("ascii")


def test_a_worker_that_looks_for_its_run_is_not_offline() -> None:
    output = io.StringIO()
    worker = {"run": "chain", "state": "looking for the run", "peers": {}}
    Console(file=output, width=80).print(WorkerScreen(worker, now=NOW))
    assert "starting" in output.getvalue().splitlines()[0]
    assert "OFFLINE" not in output.getvalue()


def test_a_worker_that_waits_shows_no_speed() -> None:
    def now(state: str) -> str:
        output = io.StringIO()
        worker = {**SAMPLING, "state": state}
        Console(file=output, width=80, color_system=None, legacy_windows=False).print(WorkerScreen(worker, now=NOW))
        return next(line for line in output.getvalue().splitlines() if line.startswith("now "))

    assert now("sampling").split() == ["now", "sampling", "212", "tokens/s"]
    assert now("waiting for the first weights").rstrip() == "now      waiting for the first weights"


def test_hostile_names_print_no_control_characters() -> None:
    output = io.StringIO()
    worker = {"run": "[red]x[/red]\x1b[2J", "state": "sampl\x07ing", "peers": {"learner": 1}}
    Console(file=output, width=80, force_terminal=True, color_system=None).print(WorkerScreen(worker, now=NOW))
    assert "[red]x[/red][2J" in output.getvalue()
    assert not {"\x1b", "\x07"} & set(output.getvalue())


@pytest.mark.parametrize("columns", [60, *WIDTHS])
def test_one_of_a_kind_is_not_written_as_several(columns: int) -> None:
    """The first minute of every volunteer: one group, one token, one machine, one chunk."""
    groups = {"verified": 1, "generated": 1, "rejected": 1, "expired": 1}
    one = {**SAMPLING, "groups": groups, "verified_tokens": 1, "peers": {"learner": 1, "volunteer": 1}}
    output = io.StringIO()
    console = Console(file=output, width=columns, color_system=None)
    console.print(WorkerScreen({**one, "fetching": [0, 1]}, now=NOW))
    text = " ".join(output.getvalue().split())
    assert not re.findall(r"\b1 (?:judged )?(?:group|token|machine|chunk|peer|learner|volunteer)s\b", text)
    assert "1 group verified, 1 token credited" in text
    assert "the newest in escrow" in text
    assert "50% of 2 judged groups passed" in text
    assert "rank" not in text, "it is the board's alone"
