"""HTTP API of a board: read-only JSON under /api/v1, and the pages that show the same numbers.

Every response has an ETag. A public board may be read from any origin, one on loopback from its own pages alone. The
API never writes and has no access to addresses: a response can contain only the fields of its schema.
"""

from __future__ import annotations

import base64
from typing import Annotated, Literal

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from p2prl.protocol import limits
from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.answers_view import answers_document
from p2prl.scoreboard.documents.api_schema import (
    ContributorDocument,
    EntriesDocument,
    EvaluationsDocument,
    LeaderboardDocument,
    LedgerHeadDocument,
    MetricsDocument,
    RunDocument,
)
from p2prl.scoreboard.documents.evaluation_view import evaluations_document
from p2prl.scoreboard.documents.milestones import milestones_document
from p2prl.scoreboard.documents.network_health_view import network_document
from p2prl.scoreboard.documents.page_schema import (
    ActivityDocument,
    AnswersDocument,
    MilestonesDocument,
    NetworkDocument,
    ProfileDocument,
)
from p2prl.scoreboard.documents.profile_view import profile_document
from p2prl.scoreboard.documents.ranked_leaderboard import contributor_document, leaderboard_document
from p2prl.scoreboard.documents.team_schema import TeamProfileDocument, TeamsDocument
from p2prl.scoreboard.documents.team_view import team_document, teams_document
from p2prl.scoreboard.documents.work_over_time import TOP, activity_document
from p2prl.scoreboard.ledger.ledger_sources import LedgerSource
from p2prl.scoreboard.ledger_dump import dump_items
from p2prl.scoreboard.web.answers import Answers
from p2prl.scoreboard.web.events import EventStreams
from p2prl.scoreboard.web.http_responses import add_error_handlers, error_response, json_response
from p2prl.scoreboard.web.page_routes import add_pages, missing_page
from p2prl.scoreboard.web.parameters import (
    DEFAULT_ROWS,
    ERRORS,
    ID_ERRORS,
    LAST_STEP,
    MAX_ID_CHARS,
    MAX_POINTS,
    PAGE_ERRORS,
    TEAM_ERRORS,
    Cursor,
    Rows,
    Search,
    Window,
)
from p2prl.scoreboard.web.web_app import web_app

_MAX_TOP = 20
"""Contributors named in one activity document."""

_Id = Annotated[str, Path(max_length=MAX_ID_CHARS)]


def create_app(source: LedgerSource, *, is_public: bool = False, streams: EventStreams | None = None) -> FastAPI:
    """Build the board's web application over `source`, which must be thread-safe: handlers run in threads.

    `streams` are its event streams, for a server that ends them before it stops.
    """
    app = web_app("p2prl scoreboard", is_public=is_public)
    answers = Answers(source)
    add_error_handlers(app, missing_page(answers))
    add_pages(app, answers)
    _add_run_routes(app, answers)
    _add_people_routes(app, answers)
    _add_team_routes(app, answers)
    _add_ledger_routes(app, answers)
    (streams or EventStreams(source)).add_route(app)
    return app


def _add_run_routes(app: FastAPI, answers: Answers) -> None:
    @app.get("/api/v1/run", response_model=RunDocument, responses=ERRORS)
    def run(request: Request) -> Response:
        return answers.json(request, api_views.run_document)

    @app.get("/api/v1/metrics", response_model=MetricsDocument, responses=ERRORS)
    def metrics(
        request: Request,
        from_step: Annotated[int, Query(ge=0, le=LAST_STEP)] = 0,
        to_step: Annotated[int, Query(ge=0, le=LAST_STEP)] = LAST_STEP,
        points: Annotated[int, Query(ge=1, le=MAX_POINTS)] = 1_000,
    ) -> Response:
        return answers.json(
            request,
            lambda snapshot: api_views.metrics_document(snapshot, from_step=from_step, to_step=to_step, points=points),
        )

    @app.get("/api/v1/evaluations", response_model=EvaluationsDocument, responses=ERRORS)
    def evaluations(request: Request, limit: Rows = 100) -> Response:
        return answers.json(request, lambda snapshot: evaluations_document(snapshot, limit=limit))

    @app.get("/api/v1/answers", response_model=AnswersDocument, responses=ERRORS)
    def sample_answers(request: Request) -> Response:
        return answers.json(request, answers_document)

    @app.get("/api/v1/activity", response_model=ActivityDocument, responses=ERRORS)
    def activity(request: Request, top: Annotated[int, Query(ge=0, le=_MAX_TOP)] = TOP) -> Response:
        return answers.json(request, lambda snapshot: activity_document(snapshot, top=top))

    @app.get("/api/v1/milestones", response_model=MilestonesDocument, responses=ERRORS)
    def milestones(request: Request, limit: Rows = DEFAULT_ROWS) -> Response:
        return answers.json(request, lambda snapshot: milestones_document(snapshot, limit=limit))

    @app.get("/api/v1/network", response_model=NetworkDocument, responses=ERRORS)
    def network(request: Request) -> Response:
        return answers.json(request, network_document)


def _add_people_routes(app: FastAPI, answers: Answers) -> None:
    @app.get("/api/v1/leaderboard", response_model=LeaderboardDocument, responses=PAGE_ERRORS)
    def leaderboard(
        request: Request,
        by: Literal["people", "validators"] = "people",
        limit: Rows = DEFAULT_ROWS,
        cursor: Cursor = None,
        q: Search = "",
        window: Window = "all",
    ) -> Response:
        return answers.json(
            request,
            lambda snapshot: leaderboard_document(snapshot, by=by, limit=limit, cursor=cursor, query=q, window=window),
        )

    @app.get("/api/v1/contributors/{contributor_id}", response_model=ContributorDocument, responses=ID_ERRORS)
    def contributor(request: Request, contributor_id: _Id) -> Response:
        return answers.json(request, lambda snapshot: contributor_document(snapshot, contributor_id), missing=_nobody)

    @app.get("/api/v1/contributors/{contributor_id}/profile", response_model=ProfileDocument, responses=ID_ERRORS)
    def profile(request: Request, contributor_id: _Id) -> Response:
        return answers.json(request, lambda snapshot: profile_document(snapshot, contributor_id), missing=_nobody)


def _add_team_routes(app: FastAPI, answers: Answers) -> None:
    @app.get("/api/v1/teams", response_model=TeamsDocument, responses=PAGE_ERRORS)
    def teams(
        request: Request, limit: Rows = DEFAULT_ROWS, cursor: Cursor = None, q: Search = "", window: Window = "all"
    ) -> Response:
        return answers.json(
            request, lambda snapshot: teams_document(snapshot, limit=limit, cursor=cursor, query=q, window=window)
        )

    @app.get("/api/v1/teams/{team_id}", response_model=TeamProfileDocument, responses=TEAM_ERRORS)
    def team(request: Request, team_id: _Id) -> Response:
        return answers.json(request, lambda snapshot: team_document(snapshot, team_id), missing=_no_team)


def _no_team() -> Response:
    return error_response(404, "the ledger has no membership in this team", "Take an id from /api/v1/teams.")


def _nobody() -> Response:
    return error_response(404, "the ledger has no receipt of this id", "Take an id from the leaderboard.")


def _add_ledger_routes(app: FastAPI, answers: Answers) -> None:
    source = answers.source

    @app.get("/api/v1/ledger/head", response_model=LedgerHeadDocument, responses=ERRORS)
    def head(request: Request) -> Response:
        return answers.json(request, api_views.head_document)

    @app.get("/api/v1/ledger/entries", response_model=EntriesDocument, responses=ERRORS)
    def entries(
        request: Request,
        first: Annotated[int, Query(alias="from", ge=0, le=LAST_STEP)] = 0,
        limit: Annotated[int, Query(ge=1, le=limits.MAX_LEDGER_ENTRIES_PER_REPLY)] = 64,
    ) -> Response:
        _, board = api_views.require_run(source.snapshot())
        raws = source.entries(first, min(limit, max(0, board.height - first)))
        texts = [base64.b64encode(raw).decode() for raw in raws]
        return json_response(request, EntriesDocument(from_height=first, entries_base64=texts, height=board.height))

    @app.get(
        "/api/v1/ledger/dump",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"application/octet-stream": {}}, "description": "A file for `p2prl ledger verify`."},
            503: ERRORS[503],
        },
    )
    def dump() -> Response:
        name = {"Content-Disposition": 'attachment; filename="run.ledger"'}
        return StreamingResponse(dump_items(source), media_type="application/octet-stream", headers=name)
