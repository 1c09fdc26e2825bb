"""Probes of a verdict: drawn by group and validator, never a token that the group tells, one in every completion."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol import limits
from p2prl.protocol.digests import digest
from p2prl.protocol.verdict_probes import CANDIDATES, PROBES, candidate_tokens, probe_places

KEYS = st.binary(min_size=32, max_size=32)


@given(KEYS, st.integers(2, 300_000), st.lists(st.integers(0, 1), min_size=1, max_size=64))
def test_candidates_are_tokens_of_the_vocabulary_and_never_the_last_one(
    group: bytes, vocabulary: int, lasts: list[int]
) -> None:
    candidates = candidate_tokens(group, lasts, vocabulary)
    assert candidates == candidate_tokens(group, lasts, vocabulary)
    assert [len(row) for row in candidates] == [CANDIDATES] * len(lasts)
    for row, last in zip(candidates, lasts, strict=True):
        assert last not in row
        assert min(row) >= 0
        assert max(row) < vocabulary


@given(KEYS, KEYS, st.integers(1, limits.MAX_GROUP_SIZE))
def test_every_completion_has_a_probe(validator: bytes, group: bytes, completions: int) -> None:
    places = probe_places(validator, group, completions)
    assert PROBES <= len(places) <= limits.MAX_VERDICT_PROBES
    assert {place // CANDIDATES for place in places} == set(range(completions))
    assert places == probe_places(validator, group, completions)


def test_another_validators_verdict_tells_few_of_ones_probes() -> None:
    """Expected shared probes of two validators: one in CANDIDATES."""
    groups = [digest("g", bytes([n])) for n in range(200)]
    pairs = [(probe_places(b"a" * 32, group, 16), probe_places(b"b" * 32, group, 16)) for group in groups]
    shared = sum(mine == yours for a, b in pairs for mine, yours in zip(a, b, strict=True))
    assert shared < 3 * 200 * 16 / CANDIDATES
    assert candidate_tokens(groups[0], [0], 5_000) != candidate_tokens(groups[1], [0], 5_000)
