"""Web addresses of servers in their one spelling, so that an address is compared and signed as text. Pure."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv6Address
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[a-z0-9_]([a-z0-9._-]*[a-z0-9_])?")
_PATH = re.compile(r"[A-Za-z0-9/._~-]*")


def web_address(text: str) -> str | None:
    """The one spelling of http(s)://HOST[:PORT][/PATH]; None for anything else: a user, a query, a name that is not in
    ASCII."""
    if not text.isascii() or not text.isprintable():
        return None  # urlsplit drops some of what is not
    try:
        url = urlsplit(text)
        host, port = _host(url.hostname or ""), url.port
    except ValueError:
        return None
    is_one = url.scheme in _DEFAULT_PORTS and host and port != 0 and _PATH.fullmatch(url.path)
    if not is_one or "@" in url.netloc or "?" in text or "#" in text:
        return None
    shown = "" if port in (None, _DEFAULT_PORTS[url.scheme]) else f":{port}"
    return f"{url.scheme}://{host}{shown}{url.path}".rstrip("/")


def _host(name: str) -> str:
    """A host in its one spelling, in brackets for IPv6; empty for none."""
    if ":" not in name:
        return name if _NAME.fullmatch(name) else ""
    try:
        return f"[{IPv6Address(name)}]" if "%" not in name else ""  # a zone is a name on the machine that wrote it
    except AddressValueError:
        return ""
