"""Addresses of indexes of runs and of boards, as run.toml, options and a machine's own list name them."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from p2prl.errors import ConfigError
from p2prl.protocol.listing import MAX_BOARD_CHARS
from p2prl.protocol.web_address import web_address


def index_url(text: str) -> str:
    """An index's address in its one spelling. `ConfigError` for anything else than http(s)://HOST[:PORT][/PATH]."""
    return _spelled(text, "an index", "https://runs.example.org")


def board_url(text: str) -> str:
    """The same of a board; empty for an empty text. `ConfigError` also for one that is too long for a listing."""
    if not text:
        return ""
    url = _spelled(text, "a board", "https://board.example.org")
    if len(url) > MAX_BOARD_CHARS:
        raise ConfigError(
            f"the address of the board has {len(url)} characters, of {MAX_BOARD_CHARS}", remedy="Give it a shorter one."
        )
    return url


def is_on_this_machine(url: str) -> bool:
    """Whether an index answers on this machine alone, so that what it lists may be here too."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _spelled(text: str, what: str, example: str) -> str:
    url = web_address(text.strip())
    if url is None:
        raise ConfigError(f"{text[:80]!r} is not the address of {what}", remedy=f"It looks like {example}.")
    return url
