"""Web addresses: one spelling of each, and nothing that a reader could take for another host."""

from __future__ import annotations

import string
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.config.index_addresses import board_url, index_url
from p2prl.errors import ConfigError
from p2prl.protocol.listing import MAX_BOARD_CHARS
from p2prl.protocol.web_address import web_address


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("https://runs.example.org", "https://runs.example.org"),
        ("HTTPS://Runs.Example.ORG:443/", "https://runs.example.org"),
        ("http://board.example:80/Run-1//", "http://board.example/Run-1"),
        ("http://board.example:8080/a/b", "http://board.example:8080/a/b"),
        ("http://[2001:DB8:0::1]:8000", "http://[2001:db8::1]:8000"),
        ("http://127.0.0.1:8100", "http://127.0.0.1:8100"),
    ],
)
def test_an_address_has_one_spelling(text: str, spelled: str) -> None:
    assert web_address(text) == spelled
    assert index_url(f" {text} ") == board_url(text) == spelled


@pytest.mark.parametrize(
    "text",
    [
        "",
        "board.example.org",
        "ftp://board.example.org",
        "file:///etc/passwd",
        "https://",
        "https://user@board.example.org",
        "https://user:secret@board.example.org",
        "http://127.0.0.1:80@board.example.org",
        "https://board.example.org?x=1",
        "https://board.example.org?",
        "https://board.example.org#top",
        "https://board.example.org:0",
        "https://board.example.org:70000",
        "https://board.example.org:x",
        "https://board.example.org/a b",
        "https://board.example.org/\\evil.example",
        "https://board.example.org/%2e%2e",
        "https://b\u00f6rd.example.org",
        "https://board.example.org\n.evil.example",
        "http://[fe80::1%eth0]",
        "http://[::1",
        "http://-x.example",
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert web_address(text) is None
    if text:
        with pytest.raises(ConfigError, match="is not the address of a"):
            board_url(text)


@given(st.text(string.printable, max_size=40))
def test_a_spelling_spells_itself_and_names_one_host(rest: str) -> None:
    spelled = web_address(f"http://{rest}")
    if spelled is not None:
        url = urlsplit(spelled)
        assert web_address(spelled) == spelled
        assert url.geturl() == spelled
        assert url.hostname == (urlsplit(f"http://{rest}").hostname or "")
        assert "@" not in spelled


def test_a_board_has_an_address_that_fits_a_listing() -> None:
    assert board_url("") == ""
    with pytest.raises(ConfigError, match=f"of {MAX_BOARD_CHARS}"):
        board_url("https://board.example.org/" + "x" * MAX_BOARD_CHARS)
