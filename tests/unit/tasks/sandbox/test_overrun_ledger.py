"""Limits shrink with an author's overruns, recover with time, and are remembered for so many authors only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.tasks.sandbox.overrun_ledger import MAX_ACCOUNTS, MEMORY_S, OWN_ACCOUNT, SHORTEST_LIMIT_S, OverrunLedger


def test_each_overrun_halves_the_limit_down_to_the_shortest() -> None:
    ledger = OverrunLedger(2.0)
    limits = []
    for second in range(12):
        limits.append(ledger.limit_s(b"a", second))
        ledger.charge(b"a", second)
    assert limits == [2.0, 1.0, 0.5] + [0.25] * 9
    assert ledger.limit_s(b"b", 12) == 2.0


def test_an_overrun_counts_for_its_time_and_no_longer() -> None:
    ledger = OverrunLedger(2.0)
    ledger.charge(b"a", 0.0)
    ledger.charge(b"a", 100.0)
    assert ledger.count(b"a", MEMORY_S - 0.1) == 2
    assert ledger.count(b"a", MEMORY_S) == 1
    assert ledger.count(b"a", MEMORY_S + 100.0) == 0
    assert len(ledger) == 0


def test_the_author_whose_overrun_is_oldest_is_forgotten_first() -> None:
    ledger = OverrunLedger(2.0)
    for number in range(MAX_ACCOUNTS):
        ledger.charge(b"%d" % number, 0.0)
    ledger.charge(b"0", 1.0)
    ledger.charge(b"new", 1.0)
    assert len(ledger) == MAX_ACCOUNTS
    assert ledger.count(b"1", 1.0) == 0
    assert ledger.count(b"0", 1.0) == 2
    assert ledger.count(b"new", 1.0) == 1


def test_a_limit_below_the_shortest_is_refused() -> None:
    OverrunLedger(SHORTEST_LIMIT_S)
    with pytest.raises(ConfigError, match="limit_s"):
        OverrunLedger(SHORTEST_LIMIT_S / 2)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.floats(0, 500)), max_size=60))
def test_counts_are_those_of_a_plain_list(charges: list[tuple[bytes, float]]) -> None:
    ledger = OverrunLedger(2.0)
    now, times = 0.0, []
    for account, step in charges:
        now += step
        ledger.charge(account, now)
        times.append((account, now))
    for account in (b"a", b"b", b"c"):
        latest = [at for who, at in times if who == account][-8:]
        expected = sum(now - at < MEMORY_S for at in latest)
        assert ledger.count(account, now) == expected
        assert ledger.limit_s(account, now) == max(0.25, 2.0 / 2**expected)


def test_answers_sampled_here_never_get_less_time() -> None:
    ledger = OverrunLedger(2.0)
    for account in (OWN_ACCOUNT, b"stranger"):
        ledger.charge(account, 0.0)
    assert (ledger.count(b"", 1.0), ledger.limit_s(b"", 1.0)) == (0, 2.0)
    assert (ledger.count(b"stranger", 1.0), ledger.limit_s(b"stranger", 1.0)) == (1, 1.0)
