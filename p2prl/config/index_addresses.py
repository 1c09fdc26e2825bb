"""Addresses of indexes of runs, as run.toml, options and a machine's own list name them."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from p2prl.errors import ConfigError


def index_url(text: str) -> str:
    """An index's address in its one spelling. `ConfigError` for anything else than http(s)://HOST[:PORT][/PATH]."""
    try:
        url = urlsplit(text.strip())
        is_one = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:  # of a port that is none
        is_one = False
    if not is_one or url.query or url.fragment or url.username or not text.isprintable():
        raise ConfigError(
            f"{text[:80]!r} is not the address of an index", remedy="It looks like https://runs.example.org."
        )
    return url.geturl().rstrip("/")


def is_on_this_machine(url: str) -> bool:
    """Whether an index answers on this machine alone, so that what it lists may be here too."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
