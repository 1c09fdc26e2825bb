"""Page: a stranger's text stays text, search and commands work, numbers are readable, the chart shows the data."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape

from p2prl.protocol.rejection_reasons import RejectionReason
from p2prl.quantity_text import credit, percent, quantity
from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.api_views import run_document
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.ledger.ledger_sources import RanksOfRun
from p2prl.scoreboard.web.learning_curve import HEIGHT, WIDTH, reward_chart
from p2prl.scoreboard.web.page import STATIC, PageRequest, quoted, render_page
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, identity, manifest, receipt, sample_run

CORPUS = [
    "<script>alert(1)</script>",
    "</title><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    '" autofocus onfocus="alert(1)',
    "<svg/onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'>",
    "javascript:alert(1)",
    "{{ 7*7 }}{% raw %}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "<!--",
    "]]><x",
    "&lt;script&gt;alert(1)&lt;/script&gt;",
    "<a href=//evil.example>click</a>",
    "<base href=//evil.example/>",
    "<style>*{display:none}</style>",
    "<form action=//evil.example><input name=q>",
    "a" * 2000,
]


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.shape: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.shape.append((tag, tuple(sorted(name for name, _ in attrs))))
        self.links += [value or "" for name, value in attrs if name in ("href", "src", "action")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def tags(html: str) -> _Tags:
    parser = _Tags()
    parser.feed(html)
    parser.close()
    return parser


def page_with(text: str) -> str:
    writer = LedgerWriter(
        manifest(name=text[:64], goal=text, base_model=text, licence=text, content_policy=text, reward=text[:64])
    )
    writer.receipts(0, receipt(0, identity("ann")), receipt(1, identity("ann"), state=3, reason=text[:64]))
    # Where the extra `qr` is installed, the page has a code of the link, unless it is too long for one.
    return render_page(MemorySource(writer, incident=text, join_link=text[:500]).snapshot(), PageRequest(show=50))


@pytest.mark.parametrize("text", CORPUS)
def test_hostile_text_changes_no_tag_and_makes_no_link(text: str) -> None:
    plain, hostile = tags(page_with("harmless text")), tags(page_with(text))
    assert hostile.shape == plain.shape
    assert hostile.links == plain.links
    assert text in hostile.text  # shown as typed, not dropped


@given(st.text(alphabet=st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40))
def test_no_printable_text_changes_a_tag(text: str) -> None:
    assert tags(page_with(text)).shape == tags(page_with("harmless text")).shape


def test_page_loads_nothing_from_elsewhere_and_nothing_inline() -> None:
    html = render_page(MemorySource(sample_run(0, steps=5), join_link="p2prl://x@y").snapshot(), PageRequest(show=50))
    parsed = tags(html)
    assert parsed.links
    assert all(re.match(r"/(?!/)|#", link) for link in parsed.links)
    assert not [name for _, names in parsed.shape for name in names if name == "style" or name.startswith("on")]
    scripts = [names for tag, names in parsed.shape if tag == "script"]
    assert scripts == [("defer", "src")]
    for file in STATIC.iterdir():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|innerHTML|eval\(|@import|url\(", file.read_text())


def test_every_tag_is_closed() -> None:
    class Balance(HTMLParser):
        open: list[str]

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag not in ("meta", "link", "input"):
                self.open.append(tag)

        def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    for source in (
        MemorySource(sample_run(0, steps=30), incident="broken", join_link="p2prl://x", total_steps=99),
        MemorySource(LedgerWriter()),
        MemorySource(LedgerWriter(), known=False),
    ):
        balance = Balance()
        balance.open = []
        balance.feed(render_page(source.snapshot(), PageRequest(show=3)))
        assert not balance.open


def test_the_page_shows_the_numbers_of_the_api() -> None:
    snapshot = MemorySource(sample_run(0, steps=30)).snapshot()
    html = render_page(snapshot, PageRequest(show=50))
    run = api_views.run_document(snapshot)
    assert run.ledger.head in html
    for row in leaderboard_document(snapshot, by="people", limit=50).people:
        assert row.handle in html
        assert f'title="{row.id}"' in html
    assert "p2prl ledger verify" in html
    assert run.credit_definition in html


def test_a_long_table_has_pages() -> None:
    snapshot = MemorySource(sample_run(0, steps=10)).snapshot()
    html = render_page(snapshot, PageRequest(show=2))
    cursor = leaderboard_document(snapshot, by="people", limit=2).next_cursor
    assert f"/?show=2&cursor={cursor}#leaderboard" in tags(html).links
    assert "1 to 2 of" in " ".join(html.split())
    second = render_page(snapshot, PageRequest(show=2, cursor=cursor))
    assert "/?show=2#leaderboard" in tags(second).links
    assert "3 to 4 of" in " ".join(second.split())


def test_page_searches_without_javascript() -> None:
    snapshot = MemorySource(sample_run(0, steps=10)).snapshot()
    last = leaderboard_document(snapshot, by="people", limit=500).people[-1]
    html = render_page(snapshot, PageRequest(show=2, query=last.handle))
    assert f'title="{last.id}"' in html
    assert f'value="{last.handle}"' in html
    assert ("form", ("action", "id", "method", "role")) in tags(html).shape
    nothing = " ".join("".join(tags(render_page(snapshot, PageRequest(query="<b>x"))).text).split())
    assert "No contributor matches “<b>x”." in nothing
    assert "No validator matches “<b>x”." in nothing


def test_commands_are_complete_and_quoted() -> None:
    link = "p2prl://x@y?b=/ip4/1&b='"
    html = render_page(
        MemorySource(sample_run(0, steps=2), join_link=link).snapshot(), PageRequest(origin="http://h:1")
    )
    text = "".join(tags(html).text)
    assert "curl -fo run.ledger 'http://h:1/api/v1/ledger/dump'\np2prl ledger verify run.ledger" in text
    assert f"p2prl board {quoted(link)}" in text
    fields = re.findall(r'id="join-command"[^>]* value="([^"]*)"', html)
    assert [unescape(field) for field in fields] == [f"p2prl join {quoted(link)}"]
    assert shlex.split(quoted(link)) == [link]


def test_an_ended_run_shows_its_result_and_no_join_command() -> None:
    writer = sample_run(0, steps=60)
    snapshot = MemorySource(writer, finished=True, join_link="p2prl://x@y", learner_step=60, total_steps=60).snapshot()
    text = " ".join("".join(tags(render_page(snapshot, PageRequest())).text).split())
    assert "This run has ended. It made 60 learner steps" in text
    assert re.search(r"mean reward went from 0\.\d{3} at the beginning to 0\.\d{3} at the end", text)
    assert "Lend your machine" not in text
    assert "/api/v1/ledger/dump" in tags(render_page(snapshot, PageRequest())).links


def test_an_absent_learner_is_not_said_to_train() -> None:
    def header(**changes: Any) -> str:
        snapshot = MemorySource(sample_run(0, steps=3), **changes).snapshot()
        return " ".join("".join(tags(render_page(snapshot, PageRequest())).text).split()).split("Mean reward")[0]

    assert "training" in header()
    offline = header(learner_offline_since=1_790_000_000.0)
    assert "learner offline since 2026-09-21 14:13:20 UTC" in offline
    assert "training" not in offline.split("parameters")[0]
    assert "offline" not in header(learner_offline_since=1_790_000_000.0, finished=True)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        (None, ""),
        (RanksOfRun(plan="1", ranks=1, hosts=1), ""),
        (RanksOfRun(plan="dp2", ranks=2, hosts=1), "trained by 2 ranks, plan dp2"),
        (RanksOfRun(plan="dp4pp2", ranks=8, hosts=2), "trained by 8 ranks on 2 machines, plan dp4pp2"),
    ],
)
def test_the_page_and_the_api_name_the_ranks_of_a_learner(ranks: RanksOfRun | None, text: str) -> None:
    snapshot = MemorySource(sample_run(0, steps=3), ranks=ranks).snapshot()
    shown = " ".join("".join(tags(render_page(snapshot, PageRequest())).text).split())
    assert "trained by" in shown if text else "trained by" not in shown
    assert text in shown
    document = run_document(snapshot).ranks
    assert (None if document is None else (document.plan, document.ranks, document.machines)) == (
        None if ranks is None else (ranks.plan, ranks.ranks, ranks.hosts)
    )


@pytest.mark.parametrize(
    ("state", "is_old"),
    [
        ({}, False),
        ({"learner_offline_since": 1_790_000_000.0}, True),
        ({"finished": True}, True),
        ({"learner_offline_since": 1_790_000_000.0, "connected_peers": {"seeder": 1}}, False),
    ],
)
def test_a_link_whose_peers_nobody_asks_any_more_is_said_to_be_old(state: dict[str, Any], is_old: bool) -> None:
    """A peer that was listed may have chosen otherwise since; a board that is linked with it reads so."""
    snapshot = MemorySource(sample_run(0, steps=3), join_link="p2prl://x@y").snapshot()
    html = render_page(replace(snapshot, **{"connected_peers": None} | state), PageRequest())
    said = "The join link names the learner and peers that chose to stand in it"
    assert (f"{said} when the learner last heard of them." if is_old else f"{said}.") in " ".join(
        "".join(tags(html).text).split()
    )


@pytest.mark.parametrize(
    ("step", "total", "shown"),
    [(63, 200, "step 63 of 200"), (63, None, None), (399, 200, None), (1500, 2000, "1,500 of")],
)
def test_a_stale_target_is_not_shown(step: int, total: int | None, shown: str | None) -> None:
    snapshot = MemorySource(sample_run(0, steps=3), learner_step=step, total_steps=total).snapshot()
    html = render_page(snapshot, PageRequest())
    assert f"{step:,}" in html
    assert ("<progress max" in html.split('class="figures"')[0]) == (shown is not None)
    assert shown is None or shown in html


def test_rejections_are_explained_in_sentences() -> None:
    writer = LedgerWriter()
    rows = [
        receipt(i, identity("ann"), state=4 if reason is RejectionReason.TOO_STALE else 3, reason=reason.value)
        for i, reason in enumerate(RejectionReason)
    ]
    writer.receipts(0, *rows, receipt(99, identity("ann"), state=3, reason="made_up"))
    html = render_page(MemorySource(writer).snapshot(), PageRequest())
    assert "A reason unknown to this version of the board." in html
    for reason in RejectionReason:
        assert str(escape(reason.explanation)) in html
    assert "_mismatch" not in html


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (7, "7"),
        (9_999, "9,999"),
        (10_000, "10 k"),
        (57_249, "57.2 k"),
        (1_234_567, "1.23 M"),
        (12e9, "12 G"),
        (3.5e12, "3.5 T"),
        (0.5, "0.5"),
        (0.0000936, "0.0000936"),
        (119.408, "119"),
        (12.345, "12.3"),
        (1e-20, "0"),
        (99_999_999, "100 M"),
    ],
)
def test_quantities_are_short(value: float, text: str) -> None:
    assert quantity(value) == text


@pytest.mark.parametrize(
    ("petaflop", "text"),
    [
        (0, "0"),
        (0.00000479, "4.79 GFLOP"),
        (0.0479, "47.9 TFLOP"),
        (0.9999, "1 PFLOP"),
        (1.0, "1 PFLOP"),
        (1234.5, "1.23 EFLOP"),
        (5e9, "5 YFLOP"),
        (2.4e-15, "2.4 FLOP"),
    ],
)
def test_credit_has_a_unit_that_fits(petaflop: float, text: str) -> None:
    assert credit(petaflop) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 %"), (1, "100 %"), (0.5, "50 %"), (0.996, "99.6 %"), (0.004, "0.4 %"), (0.9996, "99.96 %")],
)
def test_shares_never_round_to_certainty(value: float, text: str) -> None:
    assert percent(value) == text


def test_the_chart_passes_through_its_points() -> None:
    snapshot = MemorySource(sample_run(0, steps=30)).snapshot()
    metrics = api_views.metrics_document(snapshot, from_step=0, to_step=99, points=240)
    chart = reward_chart(metrics)
    assert chart is not None
    points = [tuple(map(float, pair.split())) for pair in re.findall(r"[ML]([^ML]+)", chart.line)]
    assert len(points) == len(metrics.step)
    for (x, y), step, mean in zip(points, metrics.step, metrics.reward_mean, strict=True):
        assert mean is not None
        assert x == pytest.approx(WIDTH * step / 29, abs=0.01)
        assert chart.high - y / HEIGHT * (chart.high - chart.low) == pytest.approx(mean, abs=0.01)
    assert chart.low <= min(m for m in metrics.reward_mean if m is not None)
    assert len(chart.y_labels) == 5
    assert float(chart.y_labels[0]) == pytest.approx(chart.high, abs=1e-3)


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30),
    st.integers(0, 1 << 40),
)
def test_the_chart_stays_in_its_box_for_any_rewards(rewards: list[float], first: int) -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, identity("ann")))
    base = api_views.metrics_document(MemorySource(writer).snapshot(), from_step=0, to_step=9, points=9)
    count = len(rewards)
    metrics = replace(
        base,
        step=[first + i for i in range(count)],
        reward_mean=list(rewards),
        reward_low=[reward - 1 for reward in rewards],
        reward_high=[None] * count,
    )
    chart = reward_chart(metrics)
    assert chart is not None
    for pair in re.findall(r"[ML]([^MLZ]+)", chart.line + chart.band):
        x, y = map(float, pair.split())
        assert 0 <= x <= WIDTH
        assert 0 <= y <= HEIGHT
    assert chart.low < chart.high


def test_no_reward_gives_no_chart() -> None:
    assert (
        reward_chart(
            api_views.metrics_document(MemorySource(LedgerWriter()).snapshot(), from_step=0, to_step=9, points=9)
        )
        is None
    )


@pytest.mark.parametrize("changes", [{}, {"finished": True}], ids=["trains", "ended"])
def test_one_of_a_kind_is_not_written_as_several(changes: dict[str, Any]) -> None:
    """The first minute of every run: one contributor, one group, one token, one entry."""
    writer = LedgerWriter()
    writer.receipts(1, receipt(0, identity("ann"), tokens=1, completions=1))
    html = render_page(MemorySource(writer, learner_step=1, **changes).snapshot(), PageRequest())
    text = " ".join(tags(html).text)
    words = "contributor|group|token|entrie|machine|learner step|step|completion|matche|attempt"
    assert re.findall(rf"\b1\s+(?:verified\s+)?(?:{words})s\b", text) == []
    assert "1 contributor" in text


@pytest.mark.parametrize("judged", [False, True])
def test_the_page_says_when_nobody_else_can_compute_the_rewards(judged: bool) -> None:
    writer = LedgerWriter(manifest(reward="success+orm@" + "ab" * 16 if judged else "success"))
    writer.receipts(0, receipt(0, identity("ann")))
    snapshot = MemorySource(writer).snapshot()
    assert run_document(snapshot).reward_recomputable is not judged
    assert ("a reward model that the learner alone has" in render_page(snapshot, PageRequest(show=50))) is judged
