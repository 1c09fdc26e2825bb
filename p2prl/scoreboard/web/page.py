"""The board's pages: templates rendered on the server, fully escaped, with no external resources.

A run's name and goal are signed by a stranger, and answers come from a model, which makes them authentic but not
harmless. So the templates escape everything, the content security policy allows no inline script or style, and no text
becomes a link.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from p2prl.plain_text import counted
from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.quantity_text import count, credit, percent, quantity
from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.answers_view import answers_document
from p2prl.scoreboard.documents.evaluation_view import evaluations_document
from p2prl.scoreboard.documents.milestones import milestones_document
from p2prl.scoreboard.documents.network_health_view import network_document
from p2prl.scoreboard.documents.page_cursor import ALL
from p2prl.scoreboard.documents.profile_view import profile_document
from p2prl.scoreboard.documents.ranked_leaderboard import contributor_document, leaderboard_document, rank_of
from p2prl.scoreboard.documents.team_view import team_document, teams_document
from p2prl.scoreboard.documents.work_over_time import TOP, activity_document
from p2prl.scoreboard.ledger.ledger_sources import Snapshot
from p2prl.scoreboard.web.learning_curve import reward_chart
from p2prl.scoreboard.web.qr_code import qr_code
from p2prl.scoreboard.web.work_chart import work_chart
from p2prl.time_text import moment

_SHORT_ID = 6
"""Characters of a peer id shown beside a name: 58^6 = 38 billion, enough to tell two equal names apart."""

_IGNORED_LINES = {
    "impossible_receipt": "receipt with an impossible number",
    "second_receipt": "second receipt of one group",
    "impossible_verdict": "verdict with an impossible number",
    "second_verdict": "second verdict of one validator on one group",
    "verdict_on_own_work": "verdict of a validator on its own work",
    "verdict_on_another_group": "verdict that does not fit the group's receipt",
    "second_delegation": "delegation of a machine that says nothing new",
    "too_many_delegations": "delegation beyond the number that counts",
    "revocation_of_nothing": "revocation without a delegation",
    "second_revocation": "revocation that says nothing new",
    "too_many_revocations": "revocation beyond the number that counts",
    "membership_of_another": "membership that none of the member's machines sent",
    "second_membership": "membership that says nothing new",
    "too_many_memberships": "membership beyond the number that counts",
}


def rejection(code: str) -> str:
    """A sentence that explains a rejection reason."""
    try:
        return RejectionReason(code).explanation
    except ValueError:
        return "A reason unknown to this version of the board."


def ignored_line(rule: str) -> str:
    """Description of a kind of ignored ledger line."""
    return _IGNORED_LINES[rule]


def short_id(peer_id: str) -> str:
    """The end of a peer id; the beginning is the same for every Ed25519 key."""
    return peer_id[-_SHORT_ID:]


def quoted(text: str) -> str:
    """A text as one POSIX shell argument, always quoted: a join link has a ? that zsh would expand."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


FILTERS = {
    function.__name__: function
    for function in (count, counted, quantity, credit, percent, rejection, ignored_line, short_id, moment, quoted)
}
"""Filters by their name in templates."""


STATIC = Path(__file__).parent / "static"
"""Served under /static; part of the package."""

DEFAULT_ROWS = 25
"""Rows of the leaderboard on one page: a visitor on a slow phone still has the whole page in 100 KB."""

_CURVE_POINTS = 240
"""Points drawn: about one every three pixels of the widest page."""

_EVALUATIONS = 12
"""Newest evaluations on the page; the API has more."""

_NEWS = 8
"""Newest milestones on the page; the feed has more."""

_FEED_ENTRIES = 50


@dataclass(frozen=True, kw_only=True, slots=True)
class PageRequest:
    """The part of the board that a visitor asked for, and where the page will lie."""

    show: int = DEFAULT_ROWS
    """Rows of each table."""
    cursor: str | None = None
    """Position where the page begins; None for the top of the leaderboard."""
    query: str = ""
    """Search over display names and peer ids; empty for none."""
    by: str = "people"
    """Whose work the leaderboard shows: `people` or `teams`."""
    window: str = ALL
    """Time over which the leaderboard counts."""
    axis: str = "time"
    """Axis of the learning curve: `time` or `step`."""
    origin: str = "http://localhost"
    """The board's own URL, for commands to copy."""
    root: str = "/"
    """Path from the page to the board's root."""
    is_static: bool = False
    """Whether the page is a file of an exported site: without search, and with the API as files."""
    next_page: str = ""
    """In an exported site, the file with the next rows."""
    linked: int = 1 << 48
    """Contributors and teams up to this rank have a page of their own."""
    has_picture: bool = False
    """Whether the board can draw a picture for link previews."""


def render_page(snapshot: Snapshot, request: PageRequest) -> str:
    """The whole page as HTML."""
    if snapshot.run is None or snapshot.board is None:
        return _environment.get_template("waiting.html").render(peers=snapshot.connected_peers or {})
    metrics = api_views.metrics_document(snapshot, from_step=0, to_step=(1 << 48) - 1, points=_CURVE_POINTS)
    activity = activity_document(snapshot)
    people, teams = None, None
    if request.by == "teams":
        teams = teams_document(
            snapshot, limit=request.show, cursor=request.cursor, query=request.query, window=request.window
        )
    else:
        people = leaderboard_document(
            snapshot, by="people", limit=request.show, cursor=request.cursor, query=request.query, window=request.window
        )
    return _environment.get_template("board.html").render(
        run=api_views.run_document(snapshot),
        people=people,
        teams=teams,
        validators=leaderboard_document(snapshot, by="validators", limit=request.show, query=request.query),
        metrics=metrics,
        chart=reward_chart(metrics, axis=request.axis),
        points=_CURVE_POINTS,
        evaluations=evaluations_document(snapshot, limit=_EVALUATIONS),
        answers=answers_document(snapshot),
        activity=activity,
        work=work_chart(activity),
        news=milestones_document(snapshot, limit=_NEWS),
        network=network_document(snapshot),
        qr=qr_code(snapshot.join_link),
        change=api_views.reward_change(snapshot.board),
        active_steps=api_views.ACTIVE_STEPS,
        request=request,
        default_rows=DEFAULT_ROWS,
        others=TOP,
    )


def render_contributor(snapshot: Snapshot, contributor_id: str, request: PageRequest) -> str | None:
    """The page of one contributor; None when the ledger has no receipt of it."""
    person = contributor_document(snapshot, contributor_id)
    profile = profile_document(snapshot, contributor_id)
    if person is None or profile is None:
        return None
    return _environment.get_template("contributor.html").render(
        run=api_views.run_document(snapshot),
        person=person,
        has_team_page=_has_team_page(snapshot, person.team_id, request),
        profile=profile,
        work=work_chart(profile.activity),
        request=request,
    )


def render_team(snapshot: Snapshot, team_id: str, request: PageRequest) -> str | None:
    """The page of one team; None when the ledger has no membership in it."""
    profile = team_document(snapshot, team_id)
    if profile is None:
        return None

    def linked(contributor_id: str) -> bool:
        rank = rank_of(snapshot, contributor_id)
        return rank is not None and rank <= request.linked

    return _environment.get_template("team.html").render(
        run=api_views.run_document(snapshot),
        profile=profile,
        work=work_chart(profile.activity),
        linked=linked,
        request=request,
    )


def render_missing(snapshot: Snapshot, request: PageRequest, *, title: str, reason: str) -> str:
    """The page for a contributor or a team that the ledger does not know."""
    return _environment.get_template("missing.html").render(
        run=api_views.run_document(snapshot), request=request, title=title, reason=reason, share_title="", share_text=""
    )


def _has_team_page(snapshot: Snapshot, team_id: str | None, request: PageRequest) -> bool:
    """Whether a contributor's team has a page: on a server every one has, in an exported site the first ones."""
    profile = None if team_id is None else team_document(snapshot, team_id)
    return profile is not None and profile.team.rank <= request.linked


def render_feed(snapshot: Snapshot, request: PageRequest) -> str:
    """The milestones as an Atom feed (RFC 4287)."""
    run = api_views.run_document(snapshot)
    return _environment.get_template("feed.xml").render(
        run=run, news=milestones_document(snapshot, limit=_FEED_ENTRIES), request=request
    )


_environment = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters.update(FILTERS)
