"""Views: intervals, pages, curves and times, each against an independent computation."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.protocol.identity import peer_id_of
from p2prl.scoreboard.display_names import ADJECTIVES, ANIMALS, display_name
from p2prl.scoreboard.documents import api_views
from p2prl.scoreboard.documents.api_schema import ContributorDocument, ValidatorDocument
from p2prl.scoreboard.documents.ranked_leaderboard import contributor_document, leaderboard_document
from p2prl.scoreboard.ledger.total_rows import wilson_interval
from p2prl.time_text import time_text
from p2prl_lab.testing.sample_ledgers import LedgerWriter, MemorySource, identity, receipt, sample_run, verdict_on


@pytest.mark.parametrize(
    ("passed", "of", "low", "high"),
    # The score interval at 95 %, as printed by R's prop.test(x, n, correct = FALSE).
    [(3, 3, 0.4385, 1.0), (0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (50, 100, 0.4038, 0.5962)],
)
def test_the_wilson_interval_matches_published_values(passed: int, of: int, low: float, high: float) -> None:
    assert list(wilson_interval(passed, of)) == pytest.approx([low, high], abs=1e-4)


@given(st.integers(0, 500), st.integers(0, 500))
def test_the_interval_contains_the_rate_within_0_and_1(passed: int, failed: int) -> None:
    low, high = wilson_interval(passed, passed + failed)
    assert 0 <= low <= high <= 1
    if passed + failed:
        assert low - 1e-12 <= passed / (passed + failed) <= high + 1e-12


def test_pages_join_to_the_whole_table() -> None:
    snapshot = MemorySource(sample_run(0, steps=20)).snapshot()
    for by in ("people", "validators"):
        whole = leaderboard_document(snapshot, by=by, limit=500)
        rows: list[ContributorDocument | ValidatorDocument] = []
        cursor = None
        while True:
            page = leaderboard_document(snapshot, by=by, limit=3, cursor=cursor)
            rows += [*page.people, *page.validators]
            cursor = page.next_cursor
            if cursor is None:
                break
        assert rows == [*whole.people, *whole.validators]
        assert [row.rank for row in rows] == list(range(1, whole.total + 1))
        assert [row.credit for row in rows] == sorted((row.credit for row in rows), reverse=True)


def test_a_cursor_keeps_its_place_while_others_overtake() -> None:
    people = [identity(str(i)) for i in range(6)]
    writer = LedgerWriter()
    writer.receipts(0, *(receipt(i, person, tokens=100 * (i + 1)) for i, person in enumerate(people)))
    first = leaderboard_document(MemorySource(writer).snapshot(), by="people", limit=3)
    writer.receipts(1, receipt(99, people[0], tokens=10_000))  # the last one jumps to the top
    second = leaderboard_document(MemorySource(writer).snapshot(), by="people", limit=3, cursor=first.next_cursor)
    assert [row.id for row in second.people] == [people[2].peer_id, people[1].peer_id]


@pytest.mark.parametrize("cursor", ["7", "-1-abc", "1-" + "0" * 52, "9" * 30 + "-" + "1" * 46, "1-x' OR 1=1"])
def test_a_made_up_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(ConfigError, match="cursor"):
        leaderboard_document(MemorySource(LedgerWriter()).snapshot(), by="people", limit=3, cursor=cursor)


def test_a_contributor_has_the_rank_of_the_table() -> None:
    snapshot = MemorySource(sample_run(1, steps=15)).snapshot()
    for row in leaderboard_document(snapshot, by="people", limit=500).people:
        assert contributor_document(snapshot, row.id) == row
    assert contributor_document(snapshot, identity("nobody").peer_id) is None
    assert contributor_document(snapshot, "../../etc/passwd") is None


def test_the_curve_is_a_weighted_mean_with_its_interval() -> None:
    writer = LedgerWriter()
    rewards, sizes = [0.25, 0.5, 1.0, 0.125], [8, 8, 4, 16]
    rows = [
        receipt(i, identity("ann"), reward=r, completions=n, version=i)
        for i, (r, n) in enumerate(zip(rewards, sizes, strict=True))
    ]
    writer.receipts(5, *rows)
    document = api_views.metrics_document(MemorySource(writer).snapshot(), from_step=0, to_step=99, points=100)
    mean = sum(r * n for r, n in zip(rewards, sizes, strict=True)) / sum(sizes)
    half = 1.96 * statistics.stdev(rewards) / len(rewards) ** 0.5
    assert document.step == [5]
    assert document.reward_mean == [pytest.approx(mean, abs=1e-6)]
    assert document.reward_low == pytest.approx([mean - half], abs=1e-5)
    assert document.reward_high == pytest.approx([mean + half], abs=1e-5)
    assert (document.oldest_version, document.newest_version) == ([0], [3])


def test_one_group_has_no_interval_and_none_has_no_mean() -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, identity("ann")))
    writer.receipts(1, receipt(1, identity("ann"), state=3, reason="seed_mismatch"))
    document = api_views.metrics_document(MemorySource(writer).snapshot(), from_step=0, to_step=9, points=10)
    assert document.reward_mean == [0.5, None]
    assert document.reward_low == document.reward_high == [None, None]
    assert document.rejected_groups == [0, 1]


@pytest.mark.parametrize("points", [1, 2, 7, 20, 1000])
def test_a_coarse_curve_loses_nothing(points: int) -> None:
    snapshot = MemorySource(sample_run(2, steps=20)).snapshot()
    fine = api_views.metrics_document(snapshot, from_step=0, to_step=99, points=1000)
    coarse = api_views.metrics_document(snapshot, from_step=0, to_step=99, points=points)
    assert len(coarse.step) <= points
    assert sum(coarse.verified_tokens) == sum(fine.verified_tokens)
    assert sum(coarse.groups) == sum(fine.groups)
    width = coarse.steps_per_point
    for first, mean in zip(coarse.step, coarse.reward_mean, strict=True):
        inside = [i for i, step in enumerate(fine.step) if first <= step < first + width]
        total = sum((fine.reward_mean[i] or 0) * fine.completions[i] for i in inside)
        assert mean == pytest.approx(total / sum(fine.completions[i] for i in inside), abs=2e-6)


def test_the_run_document_totals() -> None:
    document = api_views.run_document(MemorySource(sample_run(0)).snapshot())
    totals = document.totals
    assert totals.verified_groups + totals.rejected_groups + totals.expired_groups == 600
    assert document.learner_step == 59
    assert sum(use.share for use in document.versions) == pytest.approx(1, abs=1e-4)
    assert [task.share for task in document.tasks] == [0.75, 0.25]
    assert totals.verified_tokens_per_s is not None


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_790_000_000_999, "2026-09-21T14:13:20Z"),
        ((1 << 53) - 1, None),
        (-1, None),
    ],
)
def test_times_are_rfc_3339_or_none(ms: int, text: str | None) -> None:
    assert time_text(ms) == text


def test_a_verdict_from_the_far_future_breaks_nothing() -> None:
    writer = LedgerWriter()
    writer.receipts(0, receipt(0, identity("ann")))
    writer.now = ((1 << 53) - 1) / 1000
    writer.add(identity("bob"), verdict_on(receipt(0, identity("ann"))))
    snapshot = MemorySource(writer).snapshot()
    row = leaderboard_document(snapshot, by="validators", limit=9).validators[0]
    assert (row.passed_groups, row.last_verdict_at) == (1, None)


@given(st.binary(min_size=32, max_size=32))
def test_a_display_name_is_two_listed_words_and_a_number(key: bytes) -> None:
    adjective, animal, number = display_name(key).split()
    assert adjective in ADJECTIVES
    assert animal in ANIMALS
    assert 10 <= int(number) <= 99


def test_display_names_are_stable_and_rarely_collide() -> None:
    assert display_name(bytes(32)) == display_name(bytes(32))
    keys = [identity(f"volunteer {i}").public_key for i in range(300)]
    assert len({display_name(key) for key in keys}) >= 295
    assert len({peer_id_of(key) for key in keys}) == 300
