"""Static lists of further peers, for `--peers FILE|URL`: one multiaddr a line, `#` begins a comment.

A list from the web is fetched by a process of its own, with a deadline and before this machine's owner is confined: its
server may be slow, or hostile. Later the network process, which is confined and starts no programs, reads it again on a
thread of its own. Whatever a list names, its peers can at worst stall a newcomer.

Run as a program, `python -m p2prl.net.process.peer_list URL`, it writes the list to standard output.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from p2prl.errors import ConfigError, UnreachableError
from p2prl.net.transports.interface_addresses import private_networks
from p2prl.net.transports.multiaddrs import split_peer
from p2prl.swarm.peers.dial_rules import DialRules

MAX_LIST_BYTES = 64 * 1024
"""A list longer than that is no list of peers."""

MAX_LISTED = 64
"""Peers taken from a list: with eight dials at once, all are tried within half a minute."""

_FETCH_S = 20.0
"""A list that takes longer must not keep a worker from starting."""

_SCHEMES = frozenset({"http", "https"})

_REMEDY = "Each line is an address like /ip4/203.0.113.7/tcp/4001/p2p/12D3KooW…, or a comment after #."


def listed_peers(source: str, fetch: Callable[[str], bytes] | None = None) -> tuple[str, ...]:
    """The addresses in a file or at a web address, each ending in a peer id.

    From the web only addresses are taken that a stranger may name (`p2prl.swarm.peers.dial_rules`). Raises
    `ConfigError` for a source that is no list, `UnreachableError` for a server that does not give one.
    """
    if is_on_web(source):
        return web_peers((fetch or fetch_list)(source), source, DialRules(networks=private_networks()))
    return parse_list(_read(Path(source).expanduser()), source)[:MAX_LISTED]


def is_on_web(source: str) -> bool:
    """Whether a list is at a web address, and no file."""
    return urlsplit(source).scheme.lower() in _SCHEMES and "://" in source


def web_peers(data: bytes, source: str, rules: DialRules) -> tuple[str, ...]:
    """The addresses in a list from the web that `rules` permit. Raises `ConfigError` as `parse_list` does."""
    listed = parse_list(data, source)
    return tuple(address for address in listed if rules.allows(address, split_peer(address)[1]))[:MAX_LISTED]


def parse_list(data: bytes, source: str) -> tuple[str, ...]:
    """The addresses in the bytes of a list. Raises `ConfigError` with the number of a line that is none."""
    if len(data) > MAX_LIST_BYTES:
        raise ConfigError(
            f"{source} has more than {MAX_LIST_BYTES // 1024} KiB: it is no list of peers", remedy=_REMEDY
        )
    found = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        address = line.partition("#")[0].strip()
        if not address:
            continue
        try:
            split_peer(address)
        except ConfigError as error:
            raise ConfigError(f"{source}, line {number}: {error}", remedy=_REMEDY) from error
        found.append(address)
    if not found:
        raise ConfigError(f"{source} names no peer", remedy=_REMEDY)
    return tuple(dict.fromkeys(found))


def fetch_list(url: str) -> bytes:
    """The bytes at a web address. Raises `UnreachableError`."""
    remedy = "Check the address, or leave --peers away: the link's own peers may do."
    command = [sys.executable, "-m", "p2prl.net.process.peer_list", url]
    try:
        done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=_FETCH_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(f"{url} gave no list within {_FETCH_S:.0f} s", remedy=remedy) from error
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no answer"]
        raise UnreachableError(f"{url} gave no list: {last[0][:200]}", remedy=remedy)
    return done.stdout


async def download_apart(url: str, get: Callable[[str], bytes] | None = None) -> bytes:
    """The bytes at a web address, read on a thread that nobody waits for at the end. Raises `UnreachableError`."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bytes] = loop.create_future()

    def settle(data: bytes, error: UnreachableError | None) -> None:
        if answer.done():
            return
        if error is None:
            answer.set_result(data)
        else:
            answer.set_exception(error)

    def read() -> None:
        data, error = b"", None
        try:
            data = (get or download)(url)
        except (OSError, HTTPException, ValueError) as why:
            error = UnreachableError(f"{url} gave no list: {why}"[:300])
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, data, error)

    threading.Thread(target=read, daemon=True).start()
    try:
        async with asyncio.timeout(_FETCH_S):
            return await answer
    except TimeoutError:
        raise UnreachableError(f"{url} gave no list within {_FETCH_S:.0f} s") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_LIST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read the list of peers {path}: {error.strerror}", remedy="Give a file, or an http(s) address."
        ) from error


class _WebRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects lead to the web only, and never from https to http."""

    max_redirections = 5

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme.lower()
        if scheme not in _SCHEMES or (req.type == "https" and scheme != "https"):
            raise urllib.error.URLError(f"it redirects to {scheme}:")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def web_opener() -> urllib.request.OpenerDirector:
    """An opener of web addresses: unlike `build_opener`'s it opens neither files nor FTP."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _WebRedirects(),
    ):
        opener.add_handler(handler)
    return opener


def download(url: str, timeout_s: float = _FETCH_S) -> bytes:
    """The first bytes at a web address, one more than a list may have. Raises `OSError` or `HTTPException`."""
    response = web_opener().open(url, timeout=timeout_s)
    if response is None:
        raise urllib.error.URLError("it is no web address")
    with response:
        data: bytes = response.read(MAX_LIST_BYTES + 1)
    return data


if __name__ == "__main__":
    try:
        sys.stdout.buffer.write(download(sys.argv[1]))
    except (OSError, HTTPException, ValueError) as error:
        sys.exit(str(error) or type(error).__name__)
