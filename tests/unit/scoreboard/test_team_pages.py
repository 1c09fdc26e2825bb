"""Pages and answers about teams: tabs without JavaScript, texts stay texts, a whole static site, ETags and errors."""

from __future__ import annotations

from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest

from p2prl.protocol.membership_statements import TeamName
from p2prl.quantity_text import credit
from p2prl.scoreboard.documents.team_view import team_document, teams_document
from p2prl.scoreboard.ledger_dump import verify_dump
from p2prl.scoreboard.web.api import create_app
from p2prl.scoreboard.web.page import PageRequest, render_contributor, render_page, render_team
from p2prl.scoreboard.web.static_site import write_site
from p2prl_lab.testing.sample_ledgers import MemorySource
from tests.unit.scoreboard.asgi import ask
from tests.unit.scoreboard.test_board_page import CORPUS, tags
from tests.unit.scoreboard.test_teams import ANN, BLUE, BOB, EVE, RED, two_teams

WRITER = two_teams()
SOURCE = MemorySource(WRITER, signed_head=WRITER.signed_head(), join_link="p2prl://x@y")
TEAM_PATH = f"/api/v1/teams/{RED.peer_id}"


def test_the_teams_are_a_tab_that_needs_no_javascript() -> None:
    app = create_app(SOURCE)
    links = tags(ask(app, "/").text).links
    assert "/?by=teams#leaderboard" in links
    page = ask(app, "/?by=teams").text
    shown = [link for link in tags(page).links if link.startswith("/t/")]
    assert shown == [f"/t/{RED.peer_id}", f"/t/{BLUE.peer_id}"]
    assert "/?by=teams&amp;window=7d#leaderboard" in page
    document = teams_document(SOURCE.snapshot(), limit=9)
    assert all(credit(row.credit) in page for row in document.teams)
    assert 'name="by" value="teams"' in page, "a search stays in the tab"
    found = ask(app, "/?by=teams&q=blue").text
    assert [link for link in tags(found).links if link.startswith("/t/")] == [f"/t/{BLUE.peer_id}"]
    assert "No team matches" in ask(app, "/?by=teams&q=zebra").text
    first = ask(app, "/?by=teams&show=1").text
    (following,) = [link for link in tags(first).links if "cursor=" in link]
    rest = ask(app, following.partition("#")[0]).text
    assert [link for link in tags(rest).links if link.startswith("/t/")] == [f"/t/{BLUE.peer_id}"]


def test_a_team_page_has_its_members_and_the_line_that_joins_it() -> None:
    app = create_app(SOURCE)
    page = ask(app, f"/t/{RED.peer_id}").text
    profile = team_document(SOURCE.snapshot(), RED.peer_id)
    assert profile is not None
    assert f'value="p2prl team join {profile.invite}"' in page
    links = tags(page).links
    assert [link for link in links if link.startswith("/c/")] == [f"/c/{ANN.peer_id}", f"/c/{BOB.peer_id}"]
    assert page.count("has left") == 1
    assert f"/t/{RED.peer_id}" in tags(ask(app, f"/c/{ANN.peer_id}").text).links
    assert "/t/" not in ask(app, f"/c/{BOB.peer_id}").text
    missing = ask(app, f"/t/{ANN.peer_id}")
    assert missing.status == 404
    assert "No such team" in missing.text


@pytest.mark.parametrize("path", [TEAM_PATH, "/?by=teams", f"/t/{RED.peer_id}"])
def test_answers_have_etags_and_heads(path: str) -> None:
    app = create_app(SOURCE)
    answer = ask(app, path)
    assert answer.status == 200
    again = ask(app, path, if_none_match=answer.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    head = ask(app, path, method="HEAD")
    assert (head.status, head.body, head.headers) == (200, b"", answer.headers)
    assert "unsafe" not in answer.headers["content-security-policy"]


def test_one_team_follows_the_schema() -> None:
    app = create_app(SOURCE)
    models = ask(app, "/api/v1/openapi.json").document["components"]["schemas"]
    document = ask(app, TEAM_PATH).document
    assert set(document) == set(models["TeamProfileDocument"]["properties"])
    assert set(document["team"]) == set(models["TeamDocument"]["properties"])
    assert set(document["members"][0]) == set(models["TeamMemberDocument"]["properties"])


@pytest.mark.parametrize("text", CORPUS)
def test_a_hostile_name_would_stay_text(text: str) -> None:
    """No ledger can hold such a name; the pages do not rely on it."""

    def pages(words: str) -> list[str]:
        snapshot = SOURCE.snapshot()
        assert snapshot.board is not None
        team = replace(snapshot.board.teams[RED.public_key], name=TeamName(RED.public_key, words, 1, b""))
        board = replace(snapshot.board, teams={**snapshot.board.teams, RED.public_key: team})
        snapshot = replace(snapshot, board=board)
        shown = [
            render_page(snapshot, PageRequest()),
            render_page(snapshot, PageRequest(by="teams")),
            render_team(snapshot, RED.peer_id, PageRequest()),
            render_contributor(snapshot, ANN.peer_id, PageRequest()),
        ]
        return [page for page in shown if page is not None]

    plain, hostile = pages("harmless text"), pages(text)
    assert len(plain) == len(hostile) == 4
    for before, after in zip(plain, hostile, strict=True):
        assert tags(after).shape == tags(before).shape
        assert tags(after).links == tags(before).links
        assert text in unescape(after)


def test_a_static_site_has_the_teams(tmp_path: Path) -> None:
    write_site(SOURCE, tmp_path)
    assert verify_dump(tmp_path / "run.ledger").root == WRITER.head.hex()
    for key in (RED, BLUE):
        assert (tmp_path / "t" / f"{key.peer_id}.html").exists()
        assert (tmp_path / "api" / "v1" / "teams" / f"{key.peer_id}.json").exists()
    assert f"t/{RED.peer_id}.html" in tags((tmp_path / "teams.html").read_text()).links
    assert f"../t/{BLUE.peer_id}.html" in tags((tmp_path / "c" / f"{EVE.peer_id}.html").read_text()).links
    for page in tmp_path.rglob("*.html"):
        for link in tags(page.read_text()).links:
            target = link.partition("#")[0]
            assert not target or (page.parent / target).exists(), (page, link)
