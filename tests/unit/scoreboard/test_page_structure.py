"""Structure of every page for those who do not see it: one heading leads, fields have names, links lead somewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser

import pytest

from p2prl.index.index_app import index_app
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.web.api import create_app
from p2prl.scoreboard.web.page import STATIC
from p2prl_lab.board_access import INDEX_PAGES, shown_index
from p2prl_lab.testing.sample_ledgers import MemorySource, sample_run
from tests.unit.scoreboard.asgi import Answer, ask

SOURCE = MemorySource(sample_run(0, steps=12), join_link="p2prl://x@y")
SOMEBODY = leaderboard_document(SOURCE.snapshot(), by="people", limit=1).people[0].id
BOARD_PAGES = ("/", "/?q=nobody", "/?by=teams", f"/c/{SOMEBODY}", "/c/nobody", "/nowhere")
PAGES = [*(("board", path) for path in BOARD_PAGES), *(("index", path) for path in INDEX_PAGES)]


@cache
def page(where: str, path: str) -> Answer:
    apps = {"board": lambda: create_app(SOURCE), "index": lambda: index_app(shown_index(), is_public=True)}
    return ask(apps[where](), path, accept="text/html")


@dataclass
class Outline(HTMLParser):
    """What a page has for a reader of its markup."""

    headings: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    landmarks: list[str] = field(default_factory=list)
    fields: list[dict[str, str | None]] = field(default_factory=list)
    label_targets: set[str | None] = field(default_factory=set)
    targets: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)
    root: dict[str, str | None] = field(default_factory=dict)
    _open: list[list[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "html":
            self.root = named
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if identifier := named.get("id"):
            self.ids.append(identifier)
        if tag in ("main", "header", "footer", "nav"):
            self.landmarks.append(tag)
        if tag in ("input", "select", "textarea") and named.get("type") != "hidden":
            self.fields.append(named)
        if tag == "label":
            self.label_targets.add(named.get("for"))
        if tag == "a":
            self.targets.append(named.get("href") or "")
        if tag in ("a", "button", "summary", "h1", "h2", "h3", "title"):
            self._open.append([tag, named.get("aria-label") or ""])

    def handle_data(self, data: str) -> None:
        for each in self._open:
            each[1] += data

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1][0] == tag:
            name = self._open.pop()[1]
            if not name.strip():
                self.unnamed.append(tag)


def outline(where: str, path: str) -> Outline:
    found = Outline()
    found.feed(page(where, path).text)
    found.close()
    return found


@pytest.mark.parametrize(("where", "path"), PAGES)
def test_headings_landmarks_and_names_are_whole(where: str, path: str) -> None:
    found = outline(where, path)
    assert found.root.get("lang") == "en"
    assert found.headings.count(1) == 1
    assert found.headings[0] == 1
    assert all(after <= before + 1 for before, after in zip(found.headings, found.headings[1:], strict=False))
    assert found.landmarks.count("main") == 1
    assert found.unnamed == []
    for each in found.fields:
        assert each.get("aria-label") or each.get("id") in found.label_targets, each
    assert len(found.ids) == len(set(found.ids))
    for target in found.targets:
        assert target, "a link that leads nowhere"
        if target.startswith("#") and target != "#":
            assert target[1:] in found.ids, target


@pytest.mark.parametrize(("where", "path"), PAGES)
def test_the_policy_of_every_page_permits_what_comes_with_it_and_nothing_else(where: str, path: str) -> None:
    answer = page(where, path)
    policy = dict(part.split(maxsplit=1) for part in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert {policy.get("script-src", "'self'"), policy["style-src"]} == {"'self'"}
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_an_index_fits_a_first_load_of_100_kb() -> None:
    app = index_app(shown_index(), is_public=True)
    paths = ("/", "/static/board.css", "/static/icon.svg")
    assert sum(len(ask(app, path).body) for path in paths) < 100_000


def test_no_width_of_the_stylesheet_is_wider_than_a_phone() -> None:
    css = (STATIC / "board.css").read_text()
    fixed = re.findall(r"(?<![-\w])(?:min-)?width: (\d+)px", css) + re.findall(r"minmax\((\d+)px", css)
    assert [width for width in map(int, fixed) if width > 320] == []
