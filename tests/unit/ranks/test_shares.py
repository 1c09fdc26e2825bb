"""Shares of ranks: every row once, as many micro-batches on each rank, and none with much more work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.learner.training.micro_batches import micro_batches
from p2prl.ranks.shares import deal, keeps_last, split

LENGTHS = st.lists(st.integers(1, 200), min_size=1, max_size=60)
RANKS = st.integers(1, 9)


@given(LENGTHS, RANKS)
def test_rows_are_dealt_once_and_evenly(lengths: list[int], ranks: int) -> None:
    shares = deal(lengths, ranks)
    assert sorted(row for share in shares for row in share) == list(range(len(lengths)))
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    work = [sum(lengths[row] for row in share) for share in shares]
    assert max(work) - min(work) <= max(lengths)


@given(LENGTHS, RANKS, st.integers(1, 400))
def test_each_rank_has_as_many_micro_batches_within_the_budget(lengths: list[int], ranks: int, tokens: int) -> None:
    parts = split(lengths, tokens=tokens, ranks=ranks)
    assert len(parts) == ranks
    assert len({len(each) for each in parts}) == 1
    assert sorted(row for each in parts for part in each for row in part) == list(range(len(lengths)))
    for part in (part for each in parts for part in each if len(part) > 1):
        assert len(part) * max(lengths[row] for row in part) <= tokens
    assert max(sum(map(bool, each)) for each in parts) == len(parts[0]), "no more empty ones than needed"


@given(LENGTHS, st.integers(1, 400))
def test_one_rank_has_the_micro_batches_of_one_process(lengths: list[int], tokens: int) -> None:
    (parts,) = split(lengths, tokens=tokens, ranks=1)
    assert sorted(map(sorted, parts)) == sorted(map(sorted, micro_batches(lengths, tokens=tokens)))


def test_empty_micro_batches_come_first() -> None:
    short, long = sorted(split([5, 5, 5], tokens=5, ranks=2), key=lambda parts: sum(map(len, parts)))
    assert (short[0], len(short[1])) == ([], 1), "so the graph that is kept is of rows"
    assert [len(part) for part in long] == [1, 1]


def test_kept_graphs_are_used_where_enough_rows_of_each_are_live() -> None:
    last = [[0, 1, 2], [3, 4, 5]]
    assert keeps_last(last, [True, True, False, False, True, True], share=2 / 3)
    assert not keeps_last(last, [True, True, False, False, False, True], share=2 / 3)
    assert keeps_last([[0], []], [True], share=2 / 3), "an empty micro-batch has no row that counts"
    assert not keeps_last([[], []], [], share=2 / 3)


@given(LENGTHS, st.integers(1, 3), st.integers(2, 4))
def test_a_pipeline_has_work_for_all_its_stages(lengths: list[int], ranks: int, stages: int) -> None:
    parts = split(lengths, tokens=10**9, ranks=ranks, stages=stages)
    assert sorted(row for each in parts for part in each for row in part) == list(range(len(lengths)))
    share = max(len(each) for each in deal(lengths, ranks))
    if max(lengths) == min(lengths):
        assert len(parts[0]) >= min(share, 4 * stages) // 2, "in spite of a budget for all rows at once"
    within = split(lengths, tokens=max(lengths), ranks=ranks, stages=stages)
    assert all(len(part) * max(lengths[i] for i in part) <= max(lengths) for each in within for part in each if part)


@given(LENGTHS, RANKS, st.integers(1, 400), st.integers(1, 3), st.data())
def test_live_rows_stay_with_their_rank(
    lengths: list[int], ranks: int, tokens: int, stages: int, data: st.DataObject
) -> None:
    """It alone has what was kept of them when they were scored."""
    live = data.draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    scored = split(lengths, tokens=tokens, ranks=ranks, stages=stages)
    pushed = split(lengths, tokens=tokens, ranks=ranks, stages=stages, live=live)
    for before, after in zip(scored, pushed, strict=True):
        held = {row for part in before for row in part}
        assert sorted(row for part in after for row in part) == sorted(row for row in held if live[row])
    assert len({len(each) for each in pushed}) == 1
