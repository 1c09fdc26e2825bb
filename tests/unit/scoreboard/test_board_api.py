"""The HTTP API: caching, origins, refusals, paging to the last entry, and no field that could place anybody."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from p2prl.errors import MachineError
from p2prl.scoreboard.api import create_app
from p2prl.scoreboard.ledger_fold import Board
from p2prl.scoreboard.page import PAGE_HEADERS
from tests.unit.scoreboard.asgi import ask
from tests.unit.scoreboard.ledgers import LedgerWriter, MemorySource, sample_run

PATHS = [
    "/api/v1/run",
    "/api/v1/leaderboard",
    "/api/v1/leaderboard?by=validators",
    "/api/v1/metrics",
    "/api/v1/ledger/head",
    "/api/v1/ledger/entries?from=0",
    "/healthz",
    "/",
]

WRITER = sample_run(0, steps=12)


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_an_etag_and_is_not_sent_twice(path: str) -> None:
    app = create_app(MemorySource(WRITER))
    answer = ask(app, path)
    assert answer.status == 200
    again = ask(app, path, if_none_match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    weak = ask(app, path, if_none_match=f'"x", W/{answer.headers["etag"]}')
    assert weak.status == 304
    assert ask(app, path, if_none_match='"something else"').body == answer.body


@pytest.mark.parametrize("path", [*PATHS, "/static/board.js", "/nowhere", "/api/v1/leaderboard?cursor=x"])
def test_every_answer_carries_the_policy_and_no_server_name(path: str) -> None:
    answer = ask(create_app(MemorySource(WRITER)), path)
    for name, value in PAGE_HEADERS.items():
        assert answer.headers[name.lower()] == value
    assert "server" not in answer.headers
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_any_origin_may_read() -> None:
    answer = ask(create_app(MemorySource(WRITER)), "/api/v1/run", origin="https://elsewhere.example")
    assert answer.headers["access-control-allow-origin"] == "*"


def test_the_etag_changes_with_the_ledger() -> None:
    writer = sample_run(0, steps=2)
    app = create_app(MemorySource(writer))
    before = ask(app, "/api/v1/run").headers["etag"]
    more = sample_run(0, steps=3)
    for envelope in more.envelopes[len(writer.envelopes) :]:
        writer.append(envelope)
    assert ask(app, "/api/v1/run").headers["etag"] != before


def test_the_entries_lead_a_stranger_to_the_same_head() -> None:
    app = create_app(MemorySource(WRITER))
    board = Board(run=WRITER.run, learner=WRITER.learner.public_key, parameters=WRITER.manifest.parameters)
    while page := ask(app, f"/api/v1/ledger/entries?from={board.height}&limit=7").document["entries_base64"]:
        for text in page:
            board.follow(base64.b64decode(text))
    head = ask(app, "/api/v1/ledger/head").document
    assert (board.height, board.head.hex()) == (head["height"], head["head"])
    tokens = sum(person.tokens for person in board.state().people.values())
    assert ask(app, "/api/v1/run").document["totals"]["verified_tokens"] == tokens


def test_a_contributor_is_found_by_id() -> None:
    app = create_app(MemorySource(WRITER))
    row = ask(app, "/api/v1/leaderboard").document["people"][0]
    assert ask(app, f"/api/v1/contributors/{row['id']}").document == row
    missing = ask(app, "/api/v1/contributors/nobody")
    assert missing.status == 404
    assert set(missing.document) == {"error", "remedy"}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/leaderboard?cursor=x", 400),
        ("/api/v1/leaderboard?by=addresses", 422),
        ("/api/v1/leaderboard?limit=100000", 422),
        ("/api/v1/metrics?points=0", 422),
        ("/api/v1/ledger/entries?from=-1", 422),
        ("/api/v1/ledger/entries?from=99999999999999999999", 422),
        ("/static/../api.py", 404),
        ("/static/%2e%2e/api.py", 404),
        ("/docs", 404),
    ],
)
def test_senseless_requests_are_refused(path: str, status: int) -> None:
    assert ask(create_app(MemorySource(WRITER)), path).status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_written(method: str) -> None:
    app = create_app(MemorySource(WRITER))
    assert {ask(app, path.split("?")[0], method=method).status for path in PATHS} == {405}


def test_a_board_that_has_not_heard_of_its_run_says_so() -> None:
    app = create_app(MemorySource(LedgerWriter(), known=False))
    answer = ask(app, "/api/v1/run")
    assert answer.status == 503
    assert answer.document["remedy"]
    assert ask(app, "/healthz").document["status"] == "starting"
    page = ask(app, "/")
    assert page.status == 200
    assert "Joining the run" in page.text


def test_a_broken_ledger_shows_on_every_surface() -> None:
    app = create_app(MemorySource(WRITER, incident="entry 7 of the ledger is broken"))
    health = ask(app, "/healthz")
    assert (health.status, health.document["status"]) == (503, "failing")
    assert ask(app, "/api/v1/ledger/head").document["incident"] == "entry 7 of the ledger is broken"
    assert "cannot be trusted" in ask(app, "/").text


def test_a_source_that_fails_is_a_503_with_its_remedy() -> None:
    class Failing(MemorySource):
        def snapshot(self) -> Any:
            raise MachineError("the journal cannot be read", remedy="Start the board again.")

    answer = ask(create_app(Failing(WRITER)), "/api/v1/run")
    assert (answer.status, answer.document["remedy"]) == (503, "Start the board again.")


_PLACES = re.compile(
    r"(^|_)(ip|ips|host|hosts|hostname|addr|address|addresses|multiaddr|port|location|country|city|user)s?(_|$)"
)


def test_no_field_of_the_schema_or_of_an_answer_could_place_anybody() -> None:
    app = create_app(MemorySource(WRITER))
    schema = ask(app, "/api/v1/openapi.json").document
    names = {name for model in schema["components"]["schemas"].values() for name in model.get("properties", {})}
    assert {"handle", "credit", "height", "reward_mean"} <= names
    for path in PATHS[:-1]:
        names |= set(_keys(ask(app, path).document))
    assert not {name for name in names if _PLACES.search(name)}


def test_no_answer_holds_an_address() -> None:
    app = create_app(MemorySource(WRITER))
    for path in PATHS:
        if "entries" not in path:
            assert not re.search(r"\b\d{1,3}(\.\d{1,3}){3}\b|/ip[46]/|/dns", ask(app, path).text)


def test_documents_follow_the_schema_they_declare() -> None:
    app = create_app(MemorySource(WRITER))
    schema = ask(app, "/api/v1/openapi.json").document
    models = schema["components"]["schemas"]
    for path, route in schema["paths"].items():
        if "{" in path:
            continue
        reference = route["get"]["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
        document = ask(app, path).document
        assert set(document) == set(models[reference.rsplit("/", 1)[1]]["properties"]), path
        assert all(isinstance(value, str) for name, value in document.items() if name == "id" or name.endswith("_id"))


def _keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for inner in value.values() for key in _keys(inner))]
    if isinstance(value, list):
        return [key for inner in value for key in _keys(inner)]
    return []
