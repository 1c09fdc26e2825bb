"""Pages for people: numbers equal a recount of the dump, texts stay texts, feeds, pictures and links are whole."""

from __future__ import annotations

import asyncio
import io
import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from p2prl.protocol.delegation import sign_delegation
from p2prl.protocol.ledger_messages import ReceiptState
from p2prl.quantity_text import count, credit, quantity
from p2prl.scoreboard.documents.answers_view import answers_document
from p2prl.scoreboard.documents.milestones import milestones_document
from p2prl.scoreboard.documents.profile_view import profile_document
from p2prl.scoreboard.documents.ranked_leaderboard import leaderboard_document
from p2prl.scoreboard.ledger.ledger_sources import PaceOfRun
from p2prl.scoreboard.ledger_dump import verify_dump, write_dump
from p2prl.scoreboard.web.api import create_app
from p2prl.scoreboard.web.events import EventStreams, state_tag
from p2prl.scoreboard.web.page import STATIC, PageRequest, render_contributor, render_feed, render_page
from p2prl.scoreboard.web.qr_code import QUIET, drawn
from p2prl.scoreboard.web.service import FRESH_S, CachedSource
from p2prl.scoreboard.web.static_site import write_site
from p2prl.time_text import time_text
from p2prl_lab.testing.sample_ledgers import (
    START_S,
    LedgerWriter,
    MemorySource,
    crowd,
    identity,
    manifest,
    receipt,
    sample_run,
)
from tests.unit.scoreboard.asgi import ask
from tests.unit.scoreboard.test_board_page import CORPUS, tags

WRITER = sample_run(0, steps=12)


def results(version: int, text: str, *, passes: bool) -> dict[str, Any]:
    answer = {"task": text, "prompt": text, "answer": text, "passes": passes}
    return {"version": version, "step": version, "time": 1.0, "tasks": {}, "answers": [answer]}


def test_every_number_of_the_leaderboard_is_that_of_the_recounted_dump(tmp_path: Path) -> None:
    source = MemorySource(WRITER, signed_head=WRITER.signed_head())
    write_dump(source, tmp_path / "run.ledger")
    counted = verify_dump(tmp_path / "run.ledger")
    html = render_page(source.snapshot(), PageRequest(show=500))
    rows = re.findall(r'<td class="who" title="([^"]+)">.*?</tr>', html.split('id="validators"')[0], re.DOTALL)
    assert rows == [person.id for person in counted.people]
    for person in counted.people:
        row = html.split(f'title="{person.id}"')[1].split("</tr>")[0]
        cells = [" ".join(cell.split()) for cell in re.findall(r'<td class="number[^>]*>(.*?)</td>', row, re.DOTALL)]
        groups = person.verified_groups + person.sampled_groups
        assert cells == [
            credit(person.credit),
            quantity(groups),
            quantity(person.verified_tokens),
            count(person.last_step),
        ]
        page = render_contributor(source.snapshot(), person.id, PageRequest())
        assert page is not None
        assert person.receipts_root in page
        assert f"<b>{count(groups)}</b><span>verified group{'s' if groups != 1 else ''}</span>" in page
    assert f"<b>{quantity(counted.totals.verified_tokens)}</b><span>verified tokens</span>" in html
    assert counted.root in html


@pytest.mark.parametrize("text", CORPUS)
def test_hostile_text_stays_text_on_every_page(text: str) -> None:
    def pages(words: str) -> list[str]:
        writer = LedgerWriter(manifest(name=words[:64], goal=words, base_model=words, licence=words))
        writer.receipts(0, receipt(0, identity("ann")), receipt(1, identity("ann"), state=3, reason=words[:64]))
        evaluations = (results(0, words, passes=False), results(1, words, passes=True))
        snapshot = MemorySource(writer, join_link=words[:500], evaluations=evaluations).snapshot()
        person = render_contributor(snapshot, identity("ann").peer_id, PageRequest())
        assert person is not None
        return [render_page(snapshot, PageRequest()), person]

    for plain, hostile in zip(pages("harmless text"), pages(text), strict=True):
        assert tags(hostile).shape == tags(plain).shape
        assert tags(hostile).links == tags(plain).links
        assert text in unescape(hostile)


@pytest.mark.parametrize("text", CORPUS)
def test_the_feed_is_xml_with_the_texts_inside(text: str) -> None:
    writer = LedgerWriter(manifest(name=text[:64], goal=text))
    writer.receipts(0, receipt(0, identity("ann")))
    root = ElementTree.fromstring(render_feed(MemorySource(writer).snapshot(), PageRequest()))
    atom = "{http://www.w3.org/2005/Atom}"
    assert root.findtext(f"{atom}subtitle") == text
    assert len(root.findall(f"{atom}entry")) == 1


def test_milestones_are_passed_once_and_newest_first() -> None:
    writer = LedgerWriter()
    for step in range(12):
        writer.now += 60
        writer.receipts(step, *(receipt(10 * step + i, identity("ann"), tokens=1_000) for i in range(10)))
    found = milestones_document(MemorySource(writer).snapshot(), limit=50)
    times = [item.at or "" for item in found.milestones]
    assert times == sorted(times, reverse=True)
    codes = [item.code for item in found.milestones]
    mine = f"groups-100-{identity('ann').peer_id}"
    assert sorted(codes) == sorted(["first-group", "groups-10", "groups-100", "tokens-100000", mine])
    assert milestones_document(MemorySource(writer).snapshot(), limit=2).total == len(codes)


def test_a_milestone_keeps_the_time_of_the_receipt_that_passed_it() -> None:
    """Its date moved with every later receipt of its hour or step, and feed readers saw it as changed."""
    writer, dated, entries = LedgerWriter(), dict[str, set[str | None]](), list[str]()
    signed: list[str | None] = []
    for number in range(130):
        writer.now += 7
        writer.receipts(number // 60, receipt(number, identity("ann"), tokens=1_000))
        signed.append(time_text(int(writer.now * 1000)))
        snapshot = MemorySource(writer).snapshot()
        for item in milestones_document(snapshot, limit=50).milestones:
            dated.setdefault(item.code, set()).add(item.at)
        feed = ElementTree.fromstring(render_feed(snapshot, PageRequest()))
        atom = "{http://www.w3.org/2005/Atom}"
        entries += [f"{e.findtext(f'{atom}id')} {e.findtext(f'{atom}updated')}" for e in feed.iter(f"{atom}entry")]
    mine = f"groups-100-{identity('ann').peer_id}"
    assert dated == {
        "first-group": {signed[0]},
        "groups-10": {signed[9]},
        "groups-100": {signed[99]},
        "tokens-100000": {signed[99]},
        mine: {signed[99]},
    }
    assert len(set(entries)) == len(dated), "an entry of the feed never changes"


@given(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), min_size=90, max_size=160), st.integers(0, 160))
@settings(max_examples=20)
def test_a_mark_of_several_machines_is_that_of_their_owner_whenever_it_said_so(
    work: list[tuple[str, bool]], said_at: int
) -> None:
    """An owner's hundredth group is the hundredth of its machines together, also when it says so only afterwards."""
    writer, owner, times = LedgerWriter(), identity("owner"), list[str | None]()
    begin, end = int(START_S * 1000), int(START_S * 1000) + 86_400_000
    given_to = [
        sign_delegation(owner, identity(name).public_key, serial=begin, not_before_ms=begin, expires_ms=end, name=name)
        for name in "ab"
    ]
    for number, (name, is_good) in enumerate(work):
        if number == min(said_at, len(work) - 1):
            for machine, statement in zip("ab", given_to, strict=True):
                writer.add(identity(machine), statement)
        writer.now += 11
        state = ReceiptState.VERIFIED if is_good else ReceiptState.EXPIRED
        writer.receipts(number, receipt(number, identity(name), state=int(state)))
        times += [time_text(int(writer.now * 1000))] * is_good
    found = milestones_document(MemorySource(writer).snapshot(), limit=50).milestones
    mine = [item.at for item in found if item.contributor_id is not None]
    assert mine == times[99:100]


def test_answers_pair_the_first_and_the_newest_and_show_learned_ones_first() -> None:
    def line(version: int, passed: tuple[str, ...]) -> dict[str, Any]:
        answers = [
            {"task": "t", "prompt": prompt, "answer": f"{prompt}{version}\u202e", "passes": prompt in passed}
            for prompt in ("a", "b", "c")
        ]
        return {"version": version, "step": version, "time": 1.0, "tasks": {}, "answers": answers}

    lines = (line(0, ("b",)), line(5, ()), line(9, ("b", "c")))
    pairs = answers_document(MemorySource(WRITER, evaluations=lines).snapshot()).pairs
    assert [pair.prompt for pair in pairs] == ["c", "b", "a"]
    assert [(pair.before.version, pair.after.version) for pair in pairs] == [(0, 9)] * 3
    assert pairs[0].after.text == "c9\ufffd"
    assert (pairs[0].before.passes, pairs[0].after.passes) == (False, True)
    assert answers_document(MemorySource(WRITER, evaluations=lines[:1]).snapshot()).pairs == []


def test_a_profile_has_the_sums_of_its_row() -> None:
    snapshot = MemorySource(WRITER).snapshot()
    rows = leaderboard_document(snapshot, by="people", limit=99).people
    tokens = sum(row.verified_tokens for row in rows)
    for row in rows:
        profile = profile_document(snapshot, row.id)
        assert profile is not None
        assert profile.share == pytest.approx(row.verified_tokens / tokens, abs=1e-6)
        groups = row.verified_groups + row.sampled_groups
        assert profile.receipts == groups + row.rejected_groups + row.expired_groups
        assert sum(profile.activity.tokens) == row.verified_tokens
        assert ("spotless" in {badge.code for badge in profile.badges}) == (groups >= 100 and not row.rejected_groups)
    assert profile_document(snapshot, identity("nobody").peer_id) is None


def test_receipts_roots_differ_with_every_fact_of_a_receipt() -> None:
    def root(**changes: Any) -> str:
        writer = LedgerWriter()
        writer.receipts(changes.pop("step", 0), receipt(changes.pop("number", 0), identity("ann"), **changes))
        return leaderboard_document(MemorySource(writer).snapshot(), by="people", limit=1).people[0].receipts_root

    roots = [root(), root(tokens=99), root(completions=7), root(number=1), root(state=2), root(step=1)]
    assert len(set(roots)) == len(roots)
    assert root() == roots[0]


def test_a_contributor_page_is_found_by_a_link_of_the_table_and_missing_ones_say_so() -> None:
    app = create_app(MemorySource(WRITER))
    links = [link for link in tags(ask(app, "/").text).links if link.startswith("/c/")]
    assert links
    for link in links:
        assert ask(app, link).status == 200
    missing = ask(app, f"/c/{identity('nobody').peer_id}")
    assert (missing.status, missing.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "No such contributor" in missing.text


def test_the_share_picture_has_the_size_of_a_preview() -> None:
    answer = ask(create_app(MemorySource(WRITER)), "/share.png")
    assert answer.headers["content-type"] == "image/png"
    with Image.open(io.BytesIO(answer.body)) as image:
        assert image.size == (1200, 630)
        assert len(image.convert("RGB").getcolors(1 << 24) or []) > 10
    assert ask(create_app(MemorySource(LedgerWriter())), "/share.png").status == 200


def test_a_drawn_code_has_its_dark_modules_and_no_others() -> None:
    modules = [(1, 0, 1), (0, 1, 1), (0, 0, 0)]
    code = drawn(modules)
    dark = {
        (int(x) + i - QUIET, int(y) - QUIET)
        for x, y, length in re.findall(r"M(\d+) (\d+)h(\d+)v1h-\d+z", code.path)
        for i in range(int(length))
    }
    assert dark == {(x, y) for y, row in enumerate(modules) for x, bit in enumerate(row) if bit}
    assert code.side == 3 + 2 * QUIET


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "no-cors", "sec_fetch_dest": "script"}, 403),
        ({"sec_fetch_site": "same-site", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"}, 403),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost"}, 200),
        ({"sec_fetch_site": "cross-site", "sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}, 200),
        ({"sec_fetch_site": "same-origin", "sec_fetch_mode": "cors", "sec_fetch_dest": "empty"}, 200),
        ({"sec_fetch_site": "none"}, 200),
    ],
)
def test_pages_of_other_origins_may_not_read_a_board_on_loopback(headers: dict[str, str], status: int) -> None:
    for path in ("/", "/api/v1/run", "/share.png", "/static/board.js"):
        assert ask(create_app(MemorySource(WRITER)), path, **headers).status == status


def test_a_cached_source_is_asked_twice_a_second_and_keeps_equal_states() -> None:
    asked: list[int] = []
    now = [0.0]

    class Counting(MemorySource):
        def snapshot(self) -> Any:
            asked.append(1)
            return super().snapshot()

    writer = sample_run(0, steps=2)
    source = CachedSource(Counting(writer), clock=lambda: now[0])
    first = source.snapshot()
    now[0] = FRESH_S - 0.01
    assert source.snapshot() is first
    assert len(asked) == 1
    now[0] = FRESH_S
    assert source.snapshot() is first
    assert len(asked) == 2
    writer.receipts(9, receipt(999, identity("ann")))
    now[0] = 2 * FRESH_S
    assert source.snapshot() is not first


def test_a_static_site_is_whole_and_its_links_lead_to_its_files(tmp_path: Path) -> None:
    source = MemorySource(WRITER, signed_head=WRITER.signed_head(), join_link="p2prl://x@y")
    site = write_site(source, tmp_path, url="https://example.org/run/")
    people = leaderboard_document(source.snapshot(), by="people", limit=500).people
    assert (site.pages, site.contributors) == (1, len(people))
    assert verify_dump(tmp_path / "run.ledger").root == WRITER.head.hex()
    for page in tmp_path.rglob("*.html"):
        for link in tags(page.read_text()).links:
            target = link.partition("#")[0]
            assert not target.startswith(("/", "http")), link
            assert not target or (page.parent / target).exists(), (page, link)
    assert "https://example.org/run/share.png" in (tmp_path / "index.html").read_text()


def test_first_load_fits_120_kb() -> None:
    app = create_app(MemorySource(crowd(120, steps=3), join_link="p2prl://x@y"))
    paths = ("/", "/static/board.css", "/static/board.js", "/static/icon.svg")
    assert sum(len(ask(app, path, accept_encoding="gzip").body) for path in paths) < 120_000 / 2
    assert sum(len(ask(app, path).body) for path in paths) < 120_000


def _luminance(color: str) -> float:
    channels = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(first: str, second: str) -> float:
    high, low = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _over(color: str, share: float, ground: str) -> str:
    """A color laid over a ground."""
    pairs = [(int(color[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(share * over + (1 - share) * under):02x}" for over, under in pairs)


def test_colors_have_the_contrast_of_wcag_aa_in_both_modes() -> None:
    css = (STATIC / "board.css").read_text()
    modes = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    assert len(modes) == 2
    for mode in modes:
        color = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})\b(?![0-9a-f])", mode))
        for ground in ("ground", "card"):
            for name in ("ink", "soft", "accent", "warn"):
                assert _contrast(color[name], color[ground]) >= 4.5, (name, ground)
        for name in ("s0", "s1", "s2", "s3", "s4", "s5", "rest"):
            assert _contrast(color[name], color["card"]) >= 3, name
        assert _contrast(color["warn"], color["warn-ground"]) >= 4.5
        washed, share = re.findall(r"--accent-soft: (#[0-9a-f]{6})([0-9a-f]{2});", mode)[0]
        for ground in ("ground", "card"):  # of a status: its ground lets that below it through
            assert _contrast(color["accent"], _over(washed, int(share, 16) / 255, color[ground])) >= 4.5
        for rule in re.findall(r"\{([^{}]*)\}", css):
            inks = re.findall(r"(?<![-\w])color: var\(--([a-z-]+)\)", rule)
            for behind in re.findall(r"background: var\(--([a-z-]+)\)", rule):
                assert all(_contrast(color[ink], color[behind]) >= 4.5 for ink in inks if behind in color), rule


def test_events_tell_of_each_change_and_end_with_the_board() -> None:
    writer = sample_run(0, steps=2)
    streams = EventStreams(MemorySource(writer))

    async def listen() -> list[str]:
        found: list[str] = []
        async for text in streams.events("an older state"):
            found.append(text)
            if len(found) == 2:
                streams.close()
        return found

    retry, change = asyncio.run(listen())
    assert retry == "retry: 3000\n\n"
    identifier, kind, data, *_ = change.split("\n")
    assert identifier == f"id: {state_tag(MemorySource(writer).snapshot())}"
    assert kind == "event: change"
    assert json.loads(data.removeprefix("data: ")) == {"height": len(writer.entries), "head": writer.head.hex()}


PACE = PaceOfRun(realised=0.5, predicted=0.7, low=0.6, high=0.8, error=0.1)


def test_the_state_tag_differs_whenever_the_page_does() -> None:
    def tag(**changes: Any) -> str:
        return state_tag(MemorySource(WRITER, **changes).snapshot())

    changes: list[dict[str, Any]] = [
        {},
        {"finished": True},
        {"incident": "broken"},
        {"learner_offline_since": 1.0},
        {"policy_version": 3},
        {"learner_step": 3},
        {"evaluations": ({},)},
        {"pace": PACE},
        {"pace": replace(PACE, realised=0.6)},
        {"known": False},
    ]
    assert len({tag(**change) for change in changes}) == len(changes)


def test_a_head_request_of_the_events_ends() -> None:
    answer = ask(create_app(MemorySource(WRITER)), "/api/v1/events", method="HEAD")
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")
