"""People over HTTP: the API and the pages, strict, without a script, and with nothing of a machine in them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from fastapi import FastAPI

from p2prl.index.index_app import index_app
from p2prl.index.index_state import IndexState
from p2prl.index.people_documents import MAX_RUNS
from p2prl.index.people_totals import Contribution, RunPart, contributions
from p2prl.protocol.delegation import DAY_MS, sign_delegation
from p2prl.protocol.digests import Digest, digest
from p2prl.protocol.identity import PeerId
from p2prl.scoreboard.display_names import display_name
from p2prl.scoreboard.documents.api_schema import ErrorDocument
from p2prl.scoreboard.ledger.known_run import open_run_manifest
from p2prl_lab.testing.listed_runs import NOW
from p2prl_lab.testing.sample_ledgers import LedgerWriter, identity, receipt
from tests.unit.index.test_index_app import tags
from tests.unit.scoreboard.asgi import ask
from tests.unit.scoreboard.test_board_page import CORPUS

ANN, BOB, OWNER, OTHER = (identity(name) for name in ("ann", "bob", "learner", "somebody"))


class _Clock:
    def now(self) -> float:
        return NOW


def part(name: str, people: dict[bytes, Contribution], *, owner: PeerId = OWNER.peer_id, **changes: Any) -> RunPart:
    fields = {"parameters": 500_000_000_000, "height": 1, "is_finished": False, "incident": "", **changes}
    return RunPart(run=Digest(digest("run", name.encode())), name=name, owner=owner, people=people, **fields)


def app_of(*parts: RunPart) -> FastAPI:
    state = IndexState(_Clock(), owners=frozenset({OWNER.peer_id}))
    for each in parts:
        state.people.note(each)
    return index_app(state, is_public=True)


def given(tokens: int, **changes: Any) -> Contribution:
    return Contribution(
        **{"tokens": tokens, "groups": 2, "first_ms": 1_790_000_000_000, "last_ms": 1_790_000_900_000, **changes}
    )


APP = app_of(
    part("sums", {ANN.public_key: given(3_000), BOB.public_key: given(1_000)}),
    part("chess", {ANN.public_key: given(500, last_ms=1_790_900_000_000)}, is_finished=True),
    part("fake", {BOB.public_key: given(10**9)}, owner=OTHER.peer_id),
    part("forked", {BOB.public_key: given(7)}, incident="the learner signed two histories"),
)


def test_the_api_lists_people_and_shows_one() -> None:
    answer = ask(APP, "/api/v1/people")
    document = answer.document
    assert [(row["rank"], row["id"], row["credit"], row["runs"]) for row in document["people"]] == [
        (1, ANN.peer_id, 3.5, 2),
        (2, BOB.peer_id, 1.0, 1),
    ]
    assert (document["total"], document["next_cursor"], document["counted_runs"]) == (2, None, 2)
    assert document["counted_owners"] == [OWNER.peer_id]
    again = ask(APP, "/api/v1/people", if_none_match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    bob = ask(APP, f"/api/v1/people/{BOB.peer_id}").document
    assert bob["person"] == document["people"][1]
    assert [(run["name"], run["credit"], run["owner"]) for run in bob["runs"]] == [("sums", 1.0, OWNER.peer_id)]
    assert [(run["name"], run["incident"]) for run in bob["other_runs"]] == [
        ("fake", ""),
        ("forked", "the learner signed two histories"),
    ]
    ann = ask(APP, f"/api/v1/people/{ANN.peer_id}").document
    assert (ann["person"]["first_at"], ann["person"]["last_at"]) == ("2026-09-21T14:13:20Z", "2026-10-02T00:13:20Z")
    assert [(run["name"], run["finished"]) for run in ann["runs"]] == [("sums", False), ("chess", True)]


def test_pages_of_the_api_follow_each_other_and_are_bounded() -> None:
    first = ask(APP, "/api/v1/people?limit=1").document
    second = ask(APP, f"/api/v1/people?limit=1&cursor={first['next_cursor']}").document
    assert [row["id"] for row in (*first["people"], *second["people"])] == [ANN.peer_id, BOB.peer_id]
    assert second["next_cursor"] is None
    for wrong, status in (("limit=0", 422), ("limit=501", 422), ("cursor=x", 400), (f"q={'x' * 101}", 422)):
        answer = ask(APP, f"/api/v1/people?{wrong}")
        assert answer.status == status
        assert ErrorDocument(**answer.document).remedy
    found = ask(APP, f"/api/v1/people?q={ANN.peer_id[-6:]}").document
    assert [row["id"] for row in found["people"]] == [ANN.peer_id]


@pytest.mark.parametrize("wrong", ["nobody", identity("stranger").peer_id, OWNER.peer_id, "x" * 100])
def test_nobody_has_no_page(wrong: str) -> None:
    answer = ask(APP, f"/api/v1/people/{wrong}")
    assert answer.status == 404
    assert answer.document["remedy"] == "Take one from /api/v1/people."
    page = ask(APP, f"/people/{wrong}", accept="text/html")
    assert page.status == 404
    assert "No such person" in page.text
    assert ask(APP, f"/api/v1/people/{'x' * 101}").status == 422


def test_a_document_of_one_person_names_so_many_runs() -> None:
    app = app_of(*(part(f"run-{number}", {ANN.public_key: given(1)}) for number in range(MAX_RUNS + 5)))
    document = ask(app, f"/api/v1/people/{ANN.peer_id}").document
    assert (len(document["runs"]), document["person"]["runs"]) == (MAX_RUNS, MAX_RUNS + 5)


def test_the_pages_say_what_counts_and_link_each_other() -> None:
    people, ann, bob = (ask(APP, path).text for path in ("/people", f"/people/{ANN.peer_id}", f"/people/{BOB.peer_id}"))
    words = re.sub(r"\s+", " ", people)
    assert "A run&#39;s owner signs its ledger, and so could credit anybody with anything." in words
    assert "those of 1 owner named by this index&#39;s operator" in words
    assert people.index(f'href="/people/{ANN.peer_id}"') < people.index(f'href="/people/{BOB.peer_id}"')
    assert [text in people for text in ("3.5 PFLOP", "1 PFLOP")] == [True, True]
    assert "Rank <strong>1</strong> of 2" in ann
    assert "By the word of other owners" not in ann
    counted, _, claimed = bob.partition("By the word of other owners")
    assert "<bdi>sums</bdi>" in counted
    assert "<bdi>fake</bdi>" in claimed
    assert display_name(OTHER.public_key) in claimed
    assert claimed.count("Its learner signed two histories.") == 1
    assert 'href="/people"' in ask(APP, "/").text


def test_an_index_that_counts_nobody_says_so() -> None:
    app = index_app(IndexState(_Clock()), is_public=True)
    page = ask(app, "/people").text
    assert "The runs that count in sums and ranks here are nobody&#39;s" in page
    assert "Nobody has credit in a run that counts here." in page


@pytest.mark.parametrize("path", ["/people", f"/people/{BOB.peer_id}", "/people?q=x", "/people/nobody"])
def test_the_pages_have_no_script_and_load_nothing_from_elsewhere(path: str) -> None:
    answer = ask(APP, path, accept="text/html")
    parsed = tags(answer)
    assert all(re.match(r"/(?!/)|#", link) for link in parsed.links)
    assert not [tag for tag, _ in parsed.shape if tag in ("script", "iframe", "img", "style")]
    assert not [name for _, names in parsed.shape for name in names if name == "style" or name.startswith("on")]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["referrer-policy"] == "no-referrer"
    if answer.status == 200:
        assert ask(APP, path, if_none_match=answer.headers["etag"]).status == 304


@pytest.mark.parametrize("text", CORPUS)
def test_hostile_text_changes_no_tag_and_makes_no_link(text: str) -> None:
    def shown(name: str) -> Any:
        app = app_of(
            part(name, {ANN.public_key: given(1)}), part(name, {ANN.public_key: given(1)}, owner=OTHER.peer_id)
        )
        return tags(ask(app, f"/people/{ANN.peer_id}"))

    plain, hostile = shown("harmless"), shown(text)
    assert (hostile.shape, hostile.links) == (plain.shape, plain.links)
    assert text in hostile.text
    searched = [tags(ask(APP, f"/people?q={word}")) for word in ("harmless", "%3Cscript%3Ealert(1)%3C/script%3E")]
    assert searched[0].shape == searched[1].shape


def test_no_answer_names_a_machine_or_an_address() -> None:
    writer, owner, machine = LedgerWriter(), identity("ann"), identity("attic")
    start_ms = int(writer.now * 1000)
    delegation = sign_delegation(
        owner, machine.public_key, serial=start_ms, expires_ms=start_ms + DAY_MS, not_before_ms=0
    )
    writer.add(machine, delegation)
    writer.receipts(0, receipt(0, machine))
    fold = open_run_manifest(writer.manifest_raw).new_fold()
    for raw in writer.entries:
        fold.follow(raw)
    app = app_of(part("sums", contributions(fold.state())))
    paths = ("/people", "/api/v1/people", f"/people/{owner.peer_id}", f"/api/v1/people/{owner.peer_id}", "/healthz")
    for path in paths:
        answer = ask(app, path)
        assert answer.status == 200
        text = answer.text + json.dumps(answer.headers)
        assert machine.peer_id not in text
        assert display_name(machine.public_key) not in text
        assert not re.search(r"\d+\.\d+\.\d+\.\d+", text)
    assert owner.peer_id in ask(app, "/people").text
    assert ask(app, f"/people/{machine.peer_id}").status == 404


def test_health_says_which_ledgers_are_whole() -> None:
    state = IndexState(_Clock())
    state.people.ledgers["a" * 52] = "its ledger is being read"
    app = index_app(state, is_public=True)
    assert ask(app, "/healthz").document["ledgers"] == {"a" * 52: "its ledger is being read"}
