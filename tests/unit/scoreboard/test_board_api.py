"""HTTP API: caching, gzip, HEAD, search, errors, paging to the last entry, and no field that locates a peer."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from p2prl.errors import MachineError, P2PRLError
from p2prl.net.process.join_diagnosis import unreachable
from p2prl.net.transports.tcp_trial import Outcome
from p2prl.scoreboard.documents.page_cursor import CURSOR_PATTERN
from p2prl.scoreboard.ledger.ledger_fold import LedgerFold
from p2prl.scoreboard.ledger_dump import verify_dump
from p2prl.scoreboard.web.api import create_app
from p2prl.scoreboard.web.http_middleware import RESPONSE_HEADERS
from p2prl.scoreboard.web.loopback_only import is_loopback
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, crowd, identity, sample_run
from tests.unit.scoreboard.asgi import ask

PATHS = [
    "/api/v1/run",
    "/api/v1/leaderboard",
    "/api/v1/leaderboard?by=validators",
    "/api/v1/teams",
    "/api/v1/metrics",
    "/api/v1/evaluations",
    "/api/v1/ledger/head",
    "/api/v1/ledger/entries?from=0",
    "/healthz",
    "/",
]

WRITER = sample_run(0, steps=12)
MANY = crowd(320)


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_an_etag_and_304(path: str) -> None:
    app = create_app(MemorySource(WRITER))
    answer = ask(app, path)
    assert answer.status == 200
    again = ask(app, path, if_none_match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert answer.headers["etag"].startswith("W/"), "the same tag stands for the plain and the gzipped body"
    strong = ask(app, path, if_none_match=f'"x", {answer.headers["etag"].removeprefix("W/")}')
    assert strong.status == 304
    assert ask(app, path, if_none_match='"something else"').body == answer.body


@pytest.mark.parametrize("path", [*PATHS, "/static/board.js", "/nowhere", "/api/v1/leaderboard?cursor=x"])
def test_security_headers_and_no_server_name(path: str) -> None:
    answer = ask(create_app(MemorySource(WRITER)), path)
    for name, value in RESPONSE_HEADERS.items():
        assert answer.headers[name.lower()] == value
    assert "server" not in answer.headers
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_any_origin_may_read_a_public_board() -> None:
    app = create_app(MemorySource(WRITER), is_public=True)
    answer = ask(app, "/api/v1/run", origin="https://elsewhere.example", host="board.example")
    assert (answer.status, answer.headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize("path", PATHS)
def test_no_other_origin_may_read_a_board_on_loopback(path: str) -> None:
    answer = ask(create_app(MemorySource(WRITER)), path, origin="https://elsewhere.example")
    assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "[::1]", "[::1]:8000"])
def test_a_board_on_loopback_answers_as_this_machine(host: str) -> None:
    assert ask(create_app(MemorySource(WRITER)), "/api/v1/run", host=host).status == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "localhost:x"]
)
@pytest.mark.parametrize("path", ["/", "/api/v1/run", "/static/board.js"])
def test_a_board_on_loopback_answers_to_no_other_name(path: str, host: str) -> None:
    answer = ask(create_app(MemorySource(WRITER)), path, host=host)
    assert answer.status == 421
    assert "this machine alone" in answer.document["error"]
    assert b"p2prl://" not in answer.body


@pytest.mark.parametrize(
    ("address", "alone"),
    [
        *((address, True) for address in ("127.0.0.1", "127.9.9.9", "::1", "localhost")),
        *((address, False) for address in ("0.0.0.0", "::", "192.168.1.5", "board.example", "")),
    ],
)
def test_addresses_that_this_machine_alone_can_reach(address: str, alone: bool) -> None:
    assert is_loopback(address) == alone


def test_the_etag_changes_with_the_ledger() -> None:
    writer = sample_run(0, steps=2)
    app = create_app(MemorySource(writer))
    before = ask(app, "/api/v1/run").headers["etag"]
    more = sample_run(0, steps=3)
    for envelope in more.envelopes[len(writer.envelopes) :]:
        writer.append(envelope)
    assert ask(app, "/api/v1/run").headers["etag"] != before


def test_entries_recount_to_the_same_head() -> None:
    app = create_app(MemorySource(WRITER))
    board = LedgerFold(run=WRITER.run, learner=WRITER.learner.public_key, parameters=WRITER.manifest.parameters)
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


def test_search_finds_every_contributor_by_name_or_id() -> None:
    app = create_app(MemorySource(MANY))
    row = ask(app, "/api/v1/leaderboard?limit=500").document["people"][300]
    assert row["rank"] == 301
    for query in (row["id"], row["id"][-6:], row["id"][:30].lower(), f"{row['handle']} {row['id'][-6:]}"):
        assert row in ask(app, f"/api/v1/leaderboard?limit=500&q={quote(query.upper())}").document["people"]
    by_name = ask(app, f"/api/v1/leaderboard?q={quote(row['handle'])}").document
    assert row in by_name["people"]
    assert by_name["total"] == len(by_name["people"]) < 20
    nobody = ask(app, "/api/v1/leaderboard?q=Nobody").document
    assert ask(app, "/api/v1/leaderboard?q=Nobody=").document == nobody, "a value that ends in a sign is one"
    assert (nobody["total"], nobody["people"], nobody["next_cursor"]) == (0, [], None)


def test_search_finds_what_its_rule_says_and_nothing_else() -> None:
    """The rule of the documentation, row by row: words of each name, ends and middles of each id, letters, pairs."""
    app = create_app(MemorySource(crowd(60)))
    table = ask(app, "/api/v1/leaderboard?limit=500").document["people"]

    def by_rule(query: str) -> list[int]:
        texts = [(row["rank"], row["handle"].lower(), row["id"].lower()) for row in table]
        words = query.lower().split()
        return [
            rank
            for rank, name, peer in texts
            if all(word in name or peer.startswith(word) or peer.endswith(word) for word in words)
        ]

    queries = ["e", "1", "12d3koow", "zq", "otter 9", "no such name"]
    for row in table:
        queries += [*row["handle"].split(), row["id"], row["id"][-5:], row["id"][20:30], f"{row['handle']} {row['id']}"]
    for query in queries:
        found = ask(app, f"/api/v1/leaderboard?limit=500&q={quote(query)}").document
        assert [row["rank"] for row in found["people"]] == by_rule(query), query
        assert found["total"] == len(found["people"])


def test_search_pages_through_all_matches() -> None:
    app = create_app(MemorySource(MANY))
    found = ask(app, "/api/v1/leaderboard?limit=500&q=otter").document
    rows: list[Any] = []
    cursor: str | None = ""
    while cursor is not None:
        page = ask(app, f"/api/v1/leaderboard?limit=2&q=otter{cursor and '&cursor='}{cursor}").document
        rows += page["people"]
        cursor = page["next_cursor"]
    assert rows == found["people"]
    assert all("Otter" in row["handle"] for row in rows)
    assert found["total"] == len(rows) > 2


def test_dump_verifies(tmp_path: Path) -> None:
    answer = ask(create_app(MemorySource(WRITER)), "/api/v1/ledger/dump")
    (tmp_path / "run.ledger").write_bytes(answer.body)
    result = verify_dump(tmp_path / "run.ledger")
    assert (result.height, result.root) == (len(WRITER.entries), WRITER.head.hex())
    assert ask(create_app(MemorySource(WRITER, known=False)), "/api/v1/ledger/dump").status == 503


@pytest.mark.parametrize("path", [*PATHS, "/static/board.css", "/api/v1/ledger/dump", "/api/v1/openapi.json"])
def test_head_is_get_without_a_body(path: str) -> None:
    app = create_app(MemorySource(WRITER))
    full, head = ask(app, path), ask(app, path, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert head.headers == full.headers


@pytest.mark.parametrize("path", ["/", "/api/v1/leaderboard", "/static/board.css"])
def test_gzip_keeps_the_weak_etag(path: str) -> None:
    app = create_app(MemorySource(WRITER))
    plain, packed = ask(app, path), ask(app, path, accept_encoding="gzip")
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["etag"] == plain.headers["etag"]
    assert packed.headers["etag"].startswith("W/")
    assert "accept-encoding" in packed.headers["vary"].lower()
    again = ask(app, path, accept_encoding="gzip", if_none_match=packed.headers["etag"])
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/leaderboard?cursor=x", 400),
        ("/api/v1/leaderboard?by=addresses", 422),
        ("/api/v1/leaderboard?limit=100000", 422),
        ("/api/v1/teams?cursor=x", 400),
        ("/api/v1/teams?window=1h", 422),
        ("/api/v1/teams/nobody", 404),
        ("/?by=validators", 422),
        (f"/api/v1/leaderboard?q={'a' * 101}", 422),
        (f"/?q={'a' * 101}", 422),
        (f"/api/v1/contributors/{'1' * 101}", 422),
        ("/api/v1/metrics?points=0", 422),
        ("/api/v1/ledger/entries?from=-1", 422),
        ("/api/v1/ledger/entries?from=99999999999999999999", 422),
        ("/static/../api.py", 404),
        ("/static/%2e%2e/api.py", 404),
        ("/docs", 404),
        ("/api/v1/run/", 404),
    ],
)
def test_refusals_have_one_shape(path: str, status: int) -> None:
    answer = ask(create_app(MemorySource(WRITER)), path)
    assert answer.status == status
    assert set(answer.document) == {"error", "remedy"}
    assert answer.document["error"]
    assert answer.document["remedy"]


def test_a_browser_gets_a_page_for_an_address_of_no_page() -> None:
    app, browser = create_app(MemorySource(WRITER)), {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    for path in ("/nowhere", "/c/a/b", "/static/none.css"):
        answer = ask(app, path, **browser)
        assert (answer.status, answer.headers["content-type"].split(";")[0]) == (404, "text/html")
        assert b"No such page" in answer.body
        assert b'href="/"' in answer.body
    assert set(ask(app, "/api/v1/nothing", **browser).document) == {"error", "remedy"}


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_unwritable_folder(method: str) -> None:
    app = create_app(MemorySource(WRITER))
    for path in PATHS:
        answer = ask(app, path.split("?")[0], method=method)
        assert (answer.status, set(answer.document)) == (405, {"error", "remedy"})
        assert "GET" in answer.headers["allow"]


def test_without_a_manifest_the_board_answers_503() -> None:
    app = create_app(MemorySource(LedgerWriter(), known=False))
    answer = ask(app, "/api/v1/run")
    assert answer.status == 503
    assert answer.document["remedy"]
    assert ask(app, "/healthz").document["status"] == "starting"
    page = ask(app, "/")
    assert page.status == 200
    assert "Joining the run" in page.text


def test_the_health_of_a_board_that_reaches_no_peer_names_no_address() -> None:
    ann, bob = identity("ann").peer_id, identity("bob").peer_id
    link = f"/ip4/192.0.2.7/tcp/4001/p2p/{ann}/p2p-circuit/p2p/{bob}"

    class Unreached(MemorySource):
        outcomes: Mapping[str, Outcome]

        def failure(self) -> P2PRLError | None:
            return unreachable(self.outcomes)

    source = Unreached(WRITER)
    for outcomes in ({link: Outcome.UNTRIED}, {link.partition("/p2p-circuit")[0]: Outcome.NO_ANSWER}):
        source.outcomes = outcomes
        health = ask(create_app(source), "/healthz")
        assert (health.status, health.document["status"]) == (503, "failing")
        assert "no peer of the run answered" in health.text
        assert not any(part in health.text for part in ("192.0.2.7", ann, bob))


def test_a_broken_ledger_shows_in_api_health_and_page() -> None:
    app = create_app(MemorySource(WRITER, incident="entry 7 of the ledger is broken"))
    health = ask(app, "/healthz")
    assert (health.status, health.document["status"]) == (503, "failing")
    assert ask(app, "/api/v1/ledger/head").document["incident"] == "entry 7 of the ledger is broken"
    assert "cannot be trusted" in ask(app, "/").text


def test_a_source_that_fails_is_a_503_with_its_remedy() -> None:
    class Failing(MemorySource):
        def snapshot(self) -> Any:
            raise MachineError("the journal cannot be read", remedy="Restart the board.")

    answer = ask(create_app(Failing(WRITER)), "/api/v1/run")
    assert (answer.status, answer.document["remedy"]) == (503, "Restart the board.")


_PLACES = re.compile(
    r"(^|_)(ip|ips|host|hosts|hostname|addr|address|addresses|multiaddr|port|location|country|city|user)s?(_|$)"
)


def test_no_field_could_locate_a_peer() -> None:
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


def test_schema_has_the_cursor_pattern_and_every_error() -> None:
    schema = ask(create_app(MemorySource(WRITER)), "/api/v1/openapi.json").document
    assert "HTTPValidationError" not in schema["components"]["schemas"]
    leaderboard = schema["paths"]["/api/v1/leaderboard"]["get"]
    parameters = {parameter["name"]: parameter for parameter in leaderboard["parameters"]}
    assert CURSOR_PATTERN in json.dumps(parameters["cursor"])
    assert parameters["q"]["schema"]["maxLength"] == 100
    for path, route in schema["paths"].items():
        for status, answer in route["get"]["responses"].items():
            if status != "200" and path != "/healthz":
                assert answer["content"]["application/json"]["schema"]["$ref"].endswith("/ErrorDocument")
    assert {"400", "422", "503"} <= set(leaderboard["responses"])
    assert "404" in schema["paths"]["/api/v1/contributors/{contributor_id}"]["get"]["responses"]


def test_documents_follow_the_schema() -> None:
    app = create_app(MemorySource(WRITER))
    schema = ask(app, "/api/v1/openapi.json").document
    models = schema["components"]["schemas"]
    for path, route in schema["paths"].items():
        if "{" in path:
            continue
        content = route["get"]["responses"]["200"]["content"]
        if "application/json" not in content:
            continue
        reference = content["application/json"]["schema"]["$ref"]
        document = ask(app, path).document
        assert set(document) == set(models[reference.rsplit("/", 1)[1]]["properties"]), path
        assert all(isinstance(value, str) for name, value in document.items() if name == "id" or name.endswith("_id"))


def _keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for inner in value.values() for key in _keys(inner))]
    if isinstance(value, list):
        return [key for inner in value for key in _keys(inner)]
    return []


def test_the_examples_of_the_documentation_are_answered() -> None:
    app = create_app(MemorySource(MANY))
    text = (Path(__file__).parents[3] / "docs" / "leaderboard.md").read_text()
    examples = re.findall(r"^\| `(/api/v1/\S*=\S*)`", text, flags=re.MULTILINE)
    assert any("cursor=&" in example for example in examples)
    for example in examples:
        assert ask(app, example).status == 200, example
