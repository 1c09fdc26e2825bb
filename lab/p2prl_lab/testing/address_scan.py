"""Scan of what leaves the machines of a run: links, pages, API answers, ledgers, pictures, logs. Who is named where?"""

from __future__ import annotations

import base64
import io
import ipaddress
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HTTP_S = 20.0

_LINKED = re.compile(r'(?:href|src)="([^"#]+)"')
_IPV4 = re.compile(r"(?<![\d.])((?:\d{1,3}\.){3}\d{1,3})(?![\d.]*\d)(?:(?:/tcp/|:)(\d{1,5}))?")
_IPV6 = re.compile(r"(?:/ip6/([0-9a-fA-F:.]+)(?:/tcp/(\d{1,5}))?|\[([0-9a-fA-F:.]{2,45})\](?::(\d{1,5}))?)")

RUN_FILES = (
    "link",
    "run.manifest",
    "status.json",
    "metrics.jsonl",
    "evaluations.jsonl",
    "planned-updates",
    "run.toml",
)
"""Files of a run folder that its owner shows to people. `peers` is none: it is what the learner dials."""


@dataclass(frozen=True, slots=True)
class Document:
    """Something that others can read."""

    name: str
    data: bytes
    headers: str = ""
    """Of an HTTP answer."""

    @property
    def text(self) -> str:
        """Its text, with the texts inside a picture, and with what a URL or a page has escaped."""
        text = self.data.decode("utf-8", errors="replace")
        if self.data.startswith(b"\x89PNG"):
            from PIL import Image

            text = " ".join(map(str, Image.open(io.BytesIO(self.data)).info.values()))
        return f"{self.headers}\n{urllib.parse.unquote(text)}"


@dataclass(frozen=True, slots=True)
class Place:
    """An address in a document; port 0 where none stands beside it."""

    host: str
    port: int = 0


def places(text: str) -> set[Place]:
    """Every IP address in a text, in multiaddrs, URLs and sentences."""
    found = {Place(host, int(port or 0)) for host, port in _IPV4.findall(text)}
    for first, first_port, second, second_port in _IPV6.findall(text):
        found.add(Place(first or second, int(first_port or second_port or 0)))
    return {place for place in found if _is_address(place.host)}


def strange_places(documents: Iterable[Document], allowed: Iterable[Place]) -> list[str]:
    """`DOCUMENT: HOST:PORT` for each address that is not allowed. A port of 0 in `allowed` means every port."""
    known = set(allowed)
    return [
        f"{document.name}: {place.host}:{place.port}"
        for document in documents
        for place in sorted(places(document.text), key=lambda place: (place.host, place.port))
        if place not in known and Place(place.host) not in known
    ]


def run_folder_documents(run: Path) -> Iterator[Document]:
    """What the owner of a run folder shows."""
    for name in RUN_FILES:
        if (run / name).exists():
            yield Document(f"{run.name}/{name}", (run / name).read_bytes())


def board_documents(url: str, most: int = 400) -> list[Document]:
    """Every page, picture and API answer of a board, headers included, found from its page and its schema."""
    schema = json.loads(_get(f"{url}/api/v1/openapi.json").data)
    people: list[dict[str, Any]] = json.loads(_get(f"{url}/api/v1/leaderboard").data)["people"]
    teams: list[dict[str, Any]] = json.loads(_get(f"{url}/api/v1/teams").data)["teams"]
    waiting = ["/", "/feed.atom", "/share.png", "/?by=validators", "/healthz"]
    for path in schema["paths"]:
        names = {"contributor_id": people, "team_id": teams}
        wanted = re.findall(r"\{(\w+)\}", path)
        rows = names[wanted[0]] if wanted else [{"id": ""}]
        waiting += [re.sub(r"\{\w+\}", row["id"], path) for row in rows if "events" not in path]
    seen: set[str] = set()
    documents: list[Document] = []
    while waiting and len(documents) < most:
        path = waiting.pop(0)
        if path in seen:
            continue
        seen.add(path)
        documents.append(_get(url + path))
        for link in _LINKED.findall(documents[-1].text) if "text/html" in documents[-1].text else []:
            target = urllib.parse.urlsplit(urllib.parse.urljoin(url + path, link.replace("&amp;", "&")))
            is_here = target.netloc == urllib.parse.urlsplit(url).netloc
            if is_here and "events" not in target.path:
                waiting.append(target.path + (f"?{target.query}" if target.query else ""))
    return documents


def index_documents(url: str, visitor: str) -> list[Document]:
    """The pages and every API answer of an index, headers and signed listings included, for somebody whom a proxy names
    as `visitor`."""
    listed = _get(f"{url}/api/v1/runs", visitor)
    runs: list[dict[str, Any]] = json.loads(listed.data)["runs"]
    schema = json.loads(_get(f"{url}/api/v1/openapi.json", visitor).data)
    people: list[dict[str, Any]] = json.loads(_get(f"{url}/api/v1/people", visitor).data)["people"]
    paths = ["/", "/?q=nobody", "/people", "/people?q=nobody", "/nowhere", "/api/v1/openapi.json"]
    paths += [f"/people/{person['id']}" for person in people]
    named = {"{run}": [run["run"] for run in runs], "{person_id}": [person["id"] for person in people]}
    for path in (path for path, methods in schema["paths"].items() if "get" in methods):
        field = next((each for each in named if each in path), "")
        paths += [path.replace(field, value) for value in named[field]] if field else [path]
    records = [Document(f"{run['name']}'s listing", base64.b64decode(run["record_base64"])) for run in runs]
    return [listed, *(_get(url + path, visitor) for path in paths), *records]


def _get(url: str, visitor: str = "") -> Document:
    request = urllib.request.Request(url, headers={"X-Forwarded-For": visitor} if visitor else {})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_HTTP_S) as answer:  # noqa: S310 - a server of this machine
            return Document(url.partition("//")[2], answer.read(), str(answer.headers))
    except urllib.error.HTTPError as error:
        return Document(f"{url} ({error.code})", error.read())


def _is_address(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host).is_unspecified  # "any interface" is nobody's address
    except ValueError:
        return False
