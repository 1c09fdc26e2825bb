"""An index over HTTP: listings in, runs out, the page; strict, without a script, and silent on where they came from."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from fastapi import FastAPI

from p2prl.index.index_app import index_app
from p2prl.index.index_documents import NO_ENDORSEMENT
from p2prl.index.index_state import IndexState
from p2prl.index.submission import MAX_SUBMISSION_BYTES, OCTETS, submission
from p2prl.protocol.listing import run_id
from p2prl_lab.testing.listed_runs import NOW, ListedRun, many_runs
from p2prl_lab.testing.sample_ledgers import identity
from tests.unit.scoreboard.asgi import Answer, ask
from tests.unit.scoreboard.test_board_page import CORPUS

RUN = ListedRun()
VISITOR = ("198.51.100.77", 4711)


class _Clock:
    now_s = NOW

    def now(self) -> float:
        return self.now_s

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture
def app(clock: _Clock) -> FastAPI:
    return index_app(IndexState(clock), is_public=True)


def post(app: FastAPI, body: bytes, *, kind: str = OCTETS, client: tuple[str, int] = VISITOR, **headers: str) -> Answer:
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    named = {"host": "localhost", "content-type": kind, **headers}
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": "/api/v1/listings", "raw_path": b"/api/v1/listings", "query_string": b"",
        "root_path": "", "client": client, "server": ("index", 80),
        "headers": [(name.encode(), value.encode()) for name, value in named.items()],
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    start = next(message for message in sent if message["type"] == "http.response.start")
    body = b"".join(m.get("body", b"") for m in sent if m["type"] == "http.response.body")
    return Answer(start["status"], {k.decode().lower(): v.decode() for k, v in start["headers"]}, body)


def put(app: FastAPI, run: ListedRun, **claims: Any) -> None:
    answer = post(app, submission(run.signed(**claims), run.manifest_raw))
    assert answer.status == 200, answer.text


def test_a_listing_comes_in_and_goes_out_as_it_was_signed(app: FastAPI) -> None:
    assert post(app, submission(RUN.signed(), b"")).status == 428
    taken = post(app, submission(RUN.signed(), RUN.manifest_raw))
    assert taken.document["run"] == run_id(RUN.run)
    answer = ask(app, "/api/v1/runs")
    (row,) = answer.document["runs"]
    assert base64.b64decode(row["record_base64"]) == RUN.signed()
    assert (row["name"], row["missing"], row["owner"]) == (RUN.name, 2, RUN.learner.peer_id)
    assert answer.document["note"] == NO_ENDORSEMENT
    assert "endorses no run" in NO_ENDORSEMENT
    assert ask(app, f"/api/v1/manifests/{run_id(RUN.run)}").body == RUN.manifest_raw
    assert ask(app, f"/api/v1/manifests/{'a' * 52}").status == 404
    again = ask(app, "/api/v1/runs", if_none_match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")


def test_an_expired_listing_is_gone_from_api_and_page(app: FastAPI, clock: _Clock) -> None:
    put(app, RUN)
    assert RUN.manifest.goal in ask(app, "/").text
    clock.now_s += 301
    assert ask(app, "/api/v1/runs").document["runs"] == []
    assert RUN.manifest.goal not in ask(app, "/").text
    assert ask(app, "/healthz").document["runs"] == 0


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"no message", OCTETS, 400),
        (submission(b"no listing", b""), OCTETS, 400),
        (submission(RUN.signed(by=identity("thief")), RUN.manifest_raw), OCTETS, 400),
        (submission(RUN.signed(goal="Cure cancer"), RUN.manifest_raw), OCTETS, 400),
        (submission(RUN.signed(now=NOW - 400), RUN.manifest_raw), OCTETS, 410),
        (bytes(MAX_SUBMISSION_BYTES + 1), OCTETS, 413),
        (submission(RUN.signed(), RUN.manifest_raw), "text/plain", 415),
    ],
)
def test_refusals_say_why_and_what_to_do(app: FastAPI, body: bytes, kind: str, status: int) -> None:
    answer = post(app, body, kind=kind)
    assert answer.status == status
    assert answer.document["error"]
    assert answer.document["remedy"]
    assert ask(app, "/api/v1/runs").document["runs"] == []


def test_one_network_lists_so_many_and_another_is_not_held_up(app: FastAPI) -> None:
    runs = many_runs(20)
    codes = [post(app, submission(run.signed(), run.manifest_raw)).status for run in runs[:18]]
    assert codes == [200] * 16 + [507] * 2
    other = post(app, submission(runs[19].signed(), runs[19].manifest_raw), client=("192.0.2.9", 1))
    assert other.status == 200


def test_nothing_tells_where_a_listing_came_from(app: FastAPI) -> None:
    put(app, RUN)
    for path in ("/", "/api/v1/runs", "/healthz", "/api/v1/openapi.json", f"/api/v1/manifests/{run_id(RUN.run)}"):
        answer = ask(app, path)
        assert answer.status == 200
        assert b"198.51.100" not in answer.body
        assert "198.51.100" not in json.dumps(answer.headers)


def test_an_index_on_loopback_refuses_other_names_and_other_pages(clock: _Clock) -> None:
    app = index_app(IndexState(clock), is_public=False)
    assert ask(app, "/", host="evil.example").status == 421
    body = submission(RUN.signed(), RUN.manifest_raw)
    assert post(app, body, origin="http://evil.example").status == 403
    assert post(app, body).status == 200


def test_a_public_index_lets_pages_read_and_not_write(app: FastAPI) -> None:
    read = ask(app, "/api/v1/runs", origin="http://a.example")
    assert read.headers["access-control-allow-origin"] == "*"
    asked = ask(
        app, "/api/v1/listings", method="OPTIONS", origin="http://a.example", access_control_request_method="POST"
    )
    assert asked.status == 400


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.shape: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape.append((tag, tuple(sorted(name for name, _ in attrs))))
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]
        if tag not in ("meta", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def tags(answer: Answer) -> _Tags:
    parser = _Tags()
    parser.feed(answer.text)
    parser.close()
    assert parser.open == []
    return parser


def page_of(app: FastAPI, text: str) -> _Tags:
    short = text[:150]
    run = ListedRun(changes=(("goal", short), ("content_policy", short), ("base_model", short)))
    put(app, run)
    return tags(ask(app, "/"))


@pytest.mark.parametrize("text", CORPUS)
def test_hostile_text_changes_no_tag_and_makes_no_link(clock: _Clock, text: str) -> None:
    plain, hostile = (page_of(index_app(IndexState(clock), is_public=True), each) for each in ("harmless", text))
    assert hostile.shape == plain.shape
    assert hostile.links == plain.links
    assert text[:150] in hostile.text


def test_the_page_has_no_script_and_loads_nothing_from_elsewhere(app: FastAPI) -> None:
    put(app, RUN)
    answer = ask(app, "/")
    parsed = tags(answer)
    assert all(re.match(r"/(?!/)|#", link) for link in parsed.links)
    assert not [tag for tag, _ in parsed.shape if tag in ("script", "iframe", "img", "style")]
    assert not [name for _, names in parsed.shape for name in names if name == "style" or name.startswith("on")]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["referrer-policy"] == "no-referrer"


def test_the_page_finds_by_words_and_shows_more_on_request(app: FastAPI) -> None:
    for place, run in enumerate(many_runs(30)):
        body = submission(run.signed(missing=place % 5), run.manifest_raw)
        assert post(app, body, client=(f"10.{place}.0.1", 1)).status == 200
    page = ask(app, "/").text
    assert page.count("<article") == 24
    assert "/?show=48" in page
    assert ask(app, "/?show=48").text.count("<article") == 30
    assert ask(app, "/?q=RUN-17").text.count("<article") == 1
    assert ask(app, "/?q=nobody").text.count("<article") == 0
    assert ask(app, "/?show=0").status == 422
    assert len(page.encode()) < 100_000


def test_runs_that_are_down_come_last_and_offer_no_link(app: FastAPI) -> None:
    put(app, ListedRun("down", "a"), state="paused", missing=9)
    put(app, ListedRun("up", "b"), missing=0)
    put(app, ListedRun("over", "c"), state="ended", missing=0)
    page = ask(app, "/").text
    assert page.index(">up<") < page.index(">down<")
    assert page.count("Join this run alone") == 1
    assert "misses 9" not in page
    assert page.count("has enough") == 1
