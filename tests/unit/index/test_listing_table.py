"""The listings of an index: newer ones alone replace, quotas by key and subnet hold, and spam displaces spam."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from p2prl.index.listing_table import (
    HERE,
    ListingRefusedError,
    ListingTable,
    ManifestWantedError,
    Refusal,
    TableLimits,
    mirror_source,
)
from p2prl.protocol.listing import MAX_LISTING_BYTES, MAX_MANIFEST_BYTES
from p2prl.swarm.peers.subnets import Subnet
from p2prl.swarm.token_buckets import Rate
from p2prl_lab.testing.listed_runs import NOW, ListedRun, many_runs
from p2prl_lab.testing.sample_ledgers import identity

RUN = ListedRun()
HOME = Subnet("203.0.113.0/24")
FREE = Rate(per_s=1e6, burst=1e6)
UNHURRIED = TableLimits(key_rate=FREE, subnet_rate=FREE, total_rate=FREE)
"""The numbers of the default, without limits of time."""


def put(table: ListingTable, run: ListedRun, source: Subnet = HOME, *, now: float = NOW, **claims: Any) -> None:
    table.offer(run.signed(now=now, **claims), run.manifest_raw, source=source, now=now)


def refused(table: ListingTable, run: ListedRun, source: Subnet = HOME, *, now: float = NOW) -> Refusal:
    with pytest.raises(ListingRefusedError) as caught:
        put(table, run, source, now=now)
    assert str(caught.value)
    return caught.value.why


def names(table: ListingTable, now: float = NOW) -> list[str]:
    return [row.kept.opened.listing.name for row in table.rows(now)]


def test_an_unknown_run_needs_its_manifest_and_a_known_one_does_not() -> None:
    table = ListingTable()
    with pytest.raises(ManifestWantedError):
        table.offer(RUN.signed(), b"", source=HOME, now=NOW)
    assert table.manifest(RUN.run) is None
    put(table, RUN)
    table.offer(RUN.signed(now=NOW + 60, volunteers=7), b"", source=HOME, now=NOW + 60)
    (row,) = table.rows(NOW + 60)
    assert (row.kept.opened.listing.volunteers, row.kept.first_seen) == (7, NOW)
    assert table.manifest(RUN.run) == RUN.manifest_raw


def test_only_a_newer_listing_replaces_one() -> None:
    table = ListingTable(UNHURRIED)
    put(table, RUN, now=NOW + 1, volunteers=5)
    changes = table.changes
    for now in (NOW, NOW + 1):
        with pytest.raises(ListingRefusedError) as caught:
            table.offer(RUN.signed(now=now, volunteers=9), b"", source=HOME, now=NOW + 2)
        assert caught.value.why is Refusal.OLDER
    assert table.changes == changes
    assert table.rows(NOW + 2)[0].kept.opened.listing.volunteers == 5
    table.offer(RUN.signed(now=NOW + 1.001, volunteers=9), b"", source=HOME, now=NOW + 2)
    assert table.rows(NOW + 2)[0].kept.opened.listing.volunteers == 9


def test_listings_expire() -> None:
    table = ListingTable()
    put(table, RUN)
    end = RUN.listing().expires_ms / 1000
    assert names(table, end - 0.01) == [RUN.name]
    changes = table.changes
    assert names(table, end) == []
    assert table.changes == changes + 1
    assert table.manifest(RUN.run) is None
    with pytest.raises(ListingRefusedError) as caught:
        table.offer(RUN.signed(), RUN.manifest_raw, source=HOME, now=end)
    assert caught.value.why is Refusal.EXPIRED


@pytest.mark.parametrize(
    ("raw", "manifest"),
    [
        (bytes(MAX_LISTING_BYTES + 1), b""),
        (RUN.signed(), bytes(MAX_MANIFEST_BYTES + 1)),
        (RUN.signed()[:-1], RUN.manifest_raw),
        (RUN.signed(by=identity("thief")), RUN.manifest_raw),
        (RUN.signed(goal="Cure cancer"), RUN.manifest_raw),
        (RUN.signed(), ListedRun("another").manifest_raw),
    ],
)
def test_what_no_honest_learner_sends_is_invalid(raw: bytes, manifest: bytes) -> None:
    table = ListingTable()
    with pytest.raises(ListingRefusedError) as caught:
        table.offer(raw, manifest, source=HOME, now=NOW)
    assert caught.value.why is Refusal.INVALID
    assert len(table) == 0


def test_a_thief_cannot_replace_a_listed_run() -> None:
    table = ListingTable()
    put(table, RUN)
    stolen = RUN.signed(by=identity("thief"), now=NOW + 9)
    for manifest in (b"", RUN.manifest_raw):
        with pytest.raises((ListingRefusedError, ManifestWantedError)):
            table.offer(stolen, manifest, source=HOME, now=NOW + 9)
    assert table.rows(NOW + 9)[0].kept.opened.raw == RUN.signed()


def test_quotas_by_key_subnet_and_provider() -> None:
    limits = replace(UNHURRIED, per_key=2, per_subnet=3, per_provider=4)
    table = ListingTable(limits)
    mine = many_runs(3, owners=1)
    put(table, mine[0])
    put(table, mine[1])
    assert refused(table, mine[2], Subnet("198.51.100.0/24")) is Refusal.TOO_MANY
    others = many_runs(9)[3:]
    put(table, others[0])
    assert refused(table, others[1]) is Refusal.TOO_MANY
    put(table, others[1], Subnet("203.0.77.0/24"))
    assert refused(table, others[2], Subnet("203.0.78.0/24")) is Refusal.TOO_MANY
    put(table, others[2], Subnet("203.1.78.0/24"))
    for run in others[3:]:  # those on the index's own machine, or behind a proxy that does not tell, have no subnet
        put(table, run, HERE)
    assert len(table) == 8


def test_a_renewal_needs_no_room() -> None:
    table = ListingTable(replace(UNHURRIED, per_key=1, per_subnet=1, per_provider=1, total=1))
    put(table, RUN)
    put(table, RUN, now=NOW + 1)
    put(table, RUN, Subnet("198.51.100.0/24"), now=NOW + 2)
    assert len(table) == 1


def test_rates_by_key_subnet_and_in_total() -> None:
    slow = Rate(per_s=0.1, burst=2)
    runs = many_runs(5)
    by_key = ListingTable(replace(UNHURRIED, key_rate=slow))
    put(by_key, RUN, now=NOW)
    put(by_key, RUN, now=NOW + 1)
    assert refused(by_key, RUN, now=NOW + 2) is Refusal.TOO_OFTEN
    put(by_key, runs[0], now=NOW + 2)
    put(by_key, RUN, now=NOW + 11)
    by_subnet = ListingTable(replace(UNHURRIED, subnet_rate=slow))
    put(by_subnet, runs[0])
    put(by_subnet, runs[1])
    assert refused(by_subnet, runs[2]) is Refusal.TOO_OFTEN
    put(by_subnet, runs[2], Subnet("198.51.100.0/24"))
    in_total = ListingTable(replace(UNHURRIED, total_rate=slow))
    put(in_total, runs[0], HERE)
    put(in_total, runs[1], Subnet("198.51.100.0/24"))
    assert refused(in_total, runs[2], Subnet("192.0.2.0/24")) is Refusal.TOO_OFTEN


def test_old_listings_that_somebody_sends_again_cost_their_key_nothing() -> None:
    table = ListingTable(replace(UNHURRIED, key_rate=Rate(per_s=0.0, burst=2)))
    put(table, RUN)
    for _ in range(9):
        assert refused(table, RUN, Subnet("198.51.100.0/24")) is Refusal.OLDER
    put(table, RUN, now=NOW + 60)


def test_whoever_passes_a_listing_on_from_a_crowded_network_does_not_move_it_there() -> None:
    table, crowded = ListingTable(UNHURRIED), Subnet("198.51.100.0/24")
    for run in many_runs(5):
        put(table, run, crowded)
    put(table, RUN, HOME)
    put(table, RUN, crowded, now=NOW + 1)
    put(table, RUN, mirror_source("http://a"), now=NOW + 2)
    crowds = {row.kept.opened.listing.name: row.crowd for row in table.rows(NOW + 2)}
    assert crowds[RUN.name] == 1
    assert crowds["run-0"] == 5
    put(table, many_runs(1)[0], HOME, now=NOW + 3)  # and a learner that moves to a quieter network takes it along
    crowds = {row.kept.opened.listing.name: row.crowd for row in table.rows(NOW + 3)}
    assert crowds["run-0"] == crowds[RUN.name] == 2


def test_a_mirror_has_its_part_and_a_learner_that_comes_itself_its_own() -> None:
    table, mirror = ListingTable(replace(UNHURRIED, per_mirror=2, per_subnet=1)), mirror_source("http://a")
    runs = many_runs(4)
    put(table, runs[0], mirror)
    put(table, runs[1], mirror)
    assert refused(table, runs[2], mirror) is Refusal.TOO_MANY
    put(table, runs[0], HOME, now=NOW + 1)
    put(table, runs[2], mirror)
    assert refused(table, runs[3]) is Refusal.TOO_MANY


def test_a_full_table_takes_the_newest_of_those_that_have_most() -> None:
    table = ListingTable(replace(UNHURRIED, total=4))
    runs, greedy = many_runs(6), Subnet("198.51.100.0/24")
    put(table, runs[0], HOME)
    for place in (1, 2, 3):
        put(table, runs[place], greedy, now=NOW + place)
    assert refused(table, runs[4], greedy, now=NOW + 4) is Refusal.TOO_MANY
    put(table, runs[4], Subnet("192.0.2.0/24"), now=NOW + 4)
    assert names(table, NOW + 4) == ["run-0", "run-1", "run-2", "run-4"]
    assert refused(table, runs[5], HOME, now=NOW + 4) is Refusal.TOO_MANY  # two of its own would be as many as others'
