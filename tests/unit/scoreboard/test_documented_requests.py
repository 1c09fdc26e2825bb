"""Every request that docs/leaderboard.md lists is answered as it stands, and no route of the API is left out."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest

from p2prl.scoreboard.web.api import create_app
from p2prl_lab.testing.sample_ledgers import MemorySource
from tests.unit.house.source_tree import ROOT
from tests.unit.scoreboard.asgi import ask
from tests.unit.scoreboard.test_teams import ANN, RED, two_teams

PAGE = (ROOT / "docs" / "leaderboard.md").read_text()
REQUESTS = re.findall(r"^\| `(/[^`]+)` \|", PAGE, re.MULTILINE)
WRITER = two_teams()
APP = create_app(MemorySource(WRITER, signed_head=WRITER.signed_head()))


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_documented_request_is_answered(request_: str) -> None:
    target = request_.replace("{id}", RED.peer_id if "/teams/" in request_ else ANN.peer_id)
    method = "HEAD" if request_ == "/api/v1/events" else "GET"  # a stream of events has no end to wait for
    answer = ask(APP, target, method=method)
    assert answer.status == 200, answer.text
    whole = ask(APP, urlsplit(target).path, method=method)
    assert answer.body == whole.body, "the values that the table shows are the defaults"


def test_a_documented_cut_of_the_curve_is_answered() -> None:
    (cut,) = re.findall(r"`(from_step=\d+&to_step=\d+)`", PAGE)
    assert ask(APP, f"/api/v1/metrics?{cut}").status == 200


def test_every_route_of_the_api_is_documented_with_its_parameters() -> None:
    schema = ask(APP, "/api/v1/openapi.json").document
    routes = {re.sub(r"\{\w+\}", "{id}", path): each["get"] for path, each in schema["paths"].items()}
    documented = {urlsplit(request_).path: request_ for request_ in REQUESTS}
    assert set(routes) <= set(documented) | {"/healthz"}
    for path, route in routes.items():
        named = re.findall(r"[?&](\w+)=", documented[path])
        given = [each["name"] for each in route.get("parameters", []) if each["in"] == "query"]
        assert sorted(named) == sorted(set(given) - {"from_step", "to_step"}), path
