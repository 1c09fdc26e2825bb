"""Strangers' text cannot control the terminal, and prose is wrapped between words."""

from __future__ import annotations

import codecs
import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from p2prl.cli.views import console as screen
from p2prl.plain_text import cleaned, counted, encodable, printable_bytes, wrapped

HOSTILE = "slot 3 was rejected: \x1b[2J\x1b]0;owned\x07\x9b31m\u202eok\r\np2prl: all is well\x00\u200b\ud800"


def shown(monkeypatch: pytest.MonkeyPatch, text: str, *, terminal: bool, unwrapped: bool = False) -> str:
    output = io.StringIO()
    monkeypatch.setattr(screen, "console", Console(file=output, force_terminal=terminal, width=40, highlight=False))
    screen.say(text, unwrapped=unwrapped)
    return output.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_hostile_manifest_text_is_escaped(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    said = shown(monkeypatch, HOSTILE, terminal=terminal, unwrapped=True)
    assert said == "slot 3 was rejected: [2J]0;owned31mok  p2prl: all is well\n"


def test_markup_is_printed_verbatim(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(monkeypatch, "[red]x[/red] [link=http://a]b", terminal=True) == "[red]x[/red] [link=http://a]b\n"


@given(st.text())
def test_cleaned_text_is_one_printable_line(text: str) -> None:
    kept = cleaned(text)
    assert len(kept.splitlines()) <= 1
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in kept)
    kept.encode()
    assert cleaned(kept) == kept


def test_ordinary_text_is_kept() -> None:
    text = "reward 0.5 → 0.9 ± 0.01 – “größer”, 数学, 🙂"
    assert cleaned(text) == text


def test_prose_breaks_between_words_under_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    said = shown(monkeypatch, "  Sent      generated tokens, their log-probs and timing.", terminal=True)
    assert said == "  Sent      generated tokens, their\n            log-probs and timing.\n"


def test_links_and_logs_are_never_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    link = "join link  p2prl://chain@" + "a" * 52
    assert shown(monkeypatch, link, terminal=True, unwrapped=True) == link + "\n"
    words = "many words " * 20
    assert shown(monkeypatch, words, terminal=False) == words + "\n"


@given(st.lists(st.text("abc-", min_size=1, max_size=30), min_size=1, max_size=40), st.integers(20, 100))
def test_no_word_is_lost_or_split_and_lines_fit(words: list[str], width: int) -> None:
    lines = wrapped(" ".join(words), width)
    assert " ".join(lines).split() == words
    for line in lines:
        assert len(line) <= width or len(line.split()) == 1


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [("utf-8", "v1 → v2 … 3×4 ▆é"), ("latin-1", "v1 to v2 ... 3x4 ?é"), ("ascii", "v1 to v2 ... 3x4 ??")],
)
def test_signs_that_a_terminal_lacks_are_written_in_ascii(encoding: str, shown: str) -> None:
    text = encodable("v1 → v2 … 3×4 ▆é", encoding)
    assert text == shown
    text.encode(encoding)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 entries"), (1, "1 entry"), (1.0, "1 entry"), (2, "2 entries"), (1000, "1,000 entries")]
)
def test_numbers_agree_with_what_they_count(number: float, text: str) -> None:
    assert counted(number, "entry", "entries") == text
    assert counted(number, "group") == text.replace("entries", "groups").replace("entry", "group")


def test_bytes_of_a_name_that_are_no_utf_8_are_shown_as_a_shell_takes_them() -> None:
    assert cleaned(os.fsdecode(b"/home/m\xfcller")) == "/home/m\\xfcller"


@given(st.text(), st.sampled_from(["latin-1", "ascii", "cp1252", "utf-8"]))
def test_our_streams_print_anything(text: str, encoding: str) -> None:
    codecs.register_error("p2prl", printable_bytes)
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="p2prl")
    stream.write(text)
    stream.flush()
    stream.detach()


def test_signs_that_a_locale_lacks_have_a_stand_in() -> None:
    codecs.register_error("p2prl", printable_bytes)
    assert "3 → 5 … 数 \udcff".encode("latin-1", "p2prl") == b"3 to 5 ... ? \\xff"
