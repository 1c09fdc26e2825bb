"""Shares of a batch: every completion once, about as many tokens in each, prompts together where that is possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.replayers.batch_shares import deal

Groups = list[tuple[list[int], list[int]]]
"""Prompt and lengths of completions of each group."""

prompts_drawn = st.lists(st.integers(0, 3), min_size=1, max_size=5)
groups = st.lists(st.tuples(prompts_drawn, st.lists(st.integers(1, 50), min_size=1, max_size=6)), max_size=8)


def rows_of(found: Groups) -> tuple[list[list[int]], list[int]]:
    rows = [(prompt, length) for prompt, lengths in found for length in lengths]
    return [prompt for prompt, _ in rows], [length for _, length in rows]


@given(groups, st.integers(1, 5))
def test_every_completion_is_in_one_share_and_none_is_empty(found: Groups, count: int) -> None:
    prompts, lengths = rows_of(found)
    shares = deal(prompts, lengths, count)
    assert sorted(index for share in shares for index in share) == list(range(len(prompts)))
    assert len(shares) <= count
    assert all(shares)
    assert all(share == sorted(share) for share in shares)


@given(groups, st.integers(1, 5))
def test_the_fullest_share_exceeds_the_lightest_by_no_more_than_what_is_not_cut(found: Groups, count: int) -> None:
    """Graham's bound: the last unit that came to a share went to the lightest one then."""
    prompts, lengths = rows_of(found)
    shares = deal(prompts, lengths, count)
    if len(shares) < 2:
        return
    whole = max(len(prompt) + sum(of) for prompt, of in merged(found))
    filled = [sum(lengths[index] for index in share) for share in shares]
    assert max(filled) - min(filled) <= whole + sum(len(prompt) for prompt, _ in found)


def test_prompts_stay_together_unless_there_are_too_few() -> None:
    a, b, c = [1], [2], [3]
    assert deal([a, a, b, b, c, c], [10] * 6, 3) == [[0, 1], [2, 3], [4, 5]]
    assert sorted(deal([a, a, a, a], [10] * 4, 2)) == [[0, 1], [2, 3]]
    assert sorted(deal([a, a, a, b, b], [10] * 5, 4)) == [[0, 1], [2], [3], [4]]
    assert deal([a, a, b], [10, 10, 15], 2) == [[0, 1], [2]]
    assert sorted(deal([a, b, c], [30, 20, 11], 2)) == [[0], [1, 2]], "the longest first"
    assert deal([], [], 3) == []


def merged(found: Groups) -> Groups:
    """Neighbors with one prompt as one group."""
    result: Groups = []
    for prompt, lengths in found:
        if result and result[-1][0] == prompt:
            result[-1] = (prompt, result[-1][1] + lengths)
        else:
            result.append((prompt, lengths))
    return result
