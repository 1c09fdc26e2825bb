"""Routes of an index for people: what each gave over runs, as JSON and as pages without a script."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Path, Request, Response

from p2prl.index.index_page import environment
from p2prl.index.people_documents import PeopleDocument, PersonDocument, people_document, person_document
from p2prl.index.people_state import PeopleState
from p2prl.scoreboard.documents.api_schema import ErrorDocument
from p2prl.scoreboard.web.http_responses import error_response, json_response, tagged_response
from p2prl.scoreboard.web.parameters import DEFAULT_ROWS, ERRORS, MAX_ID_CHARS, PAGE_ERRORS, Cursor, Rows, Search

_HTML = "text/html; charset=utf-8"

_ROWS_SHOWN = 25

_NOBODY: dict[int | str, dict[str, Any]] = {
    404: {"model": ErrorDocument, "description": "No ledger that is read here knows this id."}
}

_Id = Annotated[str, Path(max_length=MAX_ID_CHARS)]


def add_people(app: FastAPI, people: PeopleState) -> None:
    """Add the routes."""

    @app.get("/api/v1/people", response_model=PeopleDocument, responses=PAGE_ERRORS)
    def of_all(request: Request, limit: Rows = DEFAULT_ROWS, cursor: Cursor = None, q: Search = "") -> Response:
        return json_response(request, people_document(people.totals(), limit=limit, cursor=cursor, query=q))

    @app.get("/api/v1/people/{person_id}", response_model=PersonDocument, responses={**ERRORS, **_NOBODY})
    def of_one(request: Request, person_id: _Id) -> Response:
        document = person_document(people.totals(), person_id)
        if document is None:
            return error_response(404, "no ledger that is read here knows this id", "Take one from /api/v1/people.")
        return json_response(request, document)

    @app.get("/people", include_in_schema=False)
    def page(request: Request, cursor: Cursor = None, q: Search = "") -> Response:
        found = people_document(people.totals(), limit=_ROWS_SHOWN, cursor=cursor, query=q)
        html = environment.get_template("people.html").render(people=found, query=q.strip(), cursor=cursor)
        return tagged_response(request, html.encode(), _HTML)

    @app.get("/people/{person_id}", include_in_schema=False)
    def person(request: Request, person_id: _Id) -> Response:
        totals = people.totals()
        document = person_document(totals, person_id)
        if document is None:
            return Response(environment.get_template("nobody.html").render(), status_code=404, media_type=_HTML)
        html = environment.get_template("person.html").render(document=document, total=len(totals.ranked))
        return tagged_response(request, html.encode(), _HTML)
