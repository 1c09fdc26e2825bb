"""Floods of keys against each table: an honest newcomer gets in within a minute, and memory stays bounded."""

from __future__ import annotations

import statistics

import pytest

from p2prl.net.transports import framing
from p2prl_lab.bench.trust.network_floods import flood_directory, flood_links, flood_streams, surround_newcomer


def test_1024_keys_in_all_links_do_not_lock_a_newcomer_out() -> None:
    flood = flood_links(1, watched_s=15.0)
    assert flood.linked_after_s is not None
    assert flood.linked_share == 1.0
    assert flood.links <= 1024


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("same_subnet", [True, False])
def test_a_newcomer_is_linked_within_a_minute(seed: int, same_subnet: bool) -> None:
    flood = flood_links(seed, keys=100, subnets=1, same_subnet=same_subnet, max_links=96)
    assert flood.linked_after_s is not None
    assert flood.linked_after_s <= (1.0 if not same_subnet else 60.0)
    assert flood.linked_share >= (1.0 if not same_subnet else 0.5)
    assert flood.links <= 96


def test_attackers_of_as_many_subnets_as_there_are_links_leave_a_newcomer_its_share_by_lot() -> None:
    """Nothing tells the newcomer from 96 attackers of 96 subnets: links are drawn, so one seed says nothing."""
    floods = [flood_links(seed, keys=100, subnets=96, max_links=96) for seed in range(12)]
    linked = [flood.linked_after_s for flood in floods if flood.linked_after_s is not None]
    assert max(flood.links for flood in floods) <= 96
    assert sum(after_s <= 60.0 for after_s in linked) >= 11
    assert statistics.fmean(flood.linked_share for flood in floods) >= 0.4


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_128_keys_with_half_frames_keep_nobody_from_a_stream(seed: int, linked: bool) -> None:
    flood = flood_streams(seed, keys=128, linked=linked)
    assert flood.served_after_s is not None
    assert flood.served_after_s <= 60.0
    assert flood.peak_held_bytes <= framing.MAX_HELD_BYTES + framing.MAX_HELD_BYTES_PER_PEER
    assert flood.peak_streams <= framing.max_streams(1024)


def test_more_keys_than_streams() -> None:
    flood = flood_streams(1, keys=128, max_links=32)
    assert flood.served_after_s is not None
    assert flood.peak_streams == framing.max_streams(32)


@pytest.mark.parametrize("record_bytes", [4096, 2000])
def test_768_keys_do_not_keep_a_record_out_of_the_directory(record_bytes: int) -> None:
    flood = flood_directory(1, keys=128, record_bytes=record_bytes, max_bytes=128 * record_bytes)
    assert flood.found_after_s == 0.0
    assert flood.found_share >= 0.9
    assert flood.held_bytes <= 128 * record_bytes
    assert flood_directory(1).found_share >= 0.9


def test_many_keys_of_few_subnets_do_not_surround_a_newcomer() -> None:
    """95 % of the records are attackers', of four subnets; they answer first, and 512 of them dial the newcomer."""
    seen = [surround_newcomer(seed) for seed in range(3)]
    assert all(eclipse.honest_links >= 5 for eclipse in seen)


def test_as_many_subnets_as_honest_peers_leave_a_newcomer_some_links() -> None:
    """The attackers have as many subnets as there are honest peers, and nine tenths of the records."""
    seen = [surround_newcomer(seed, attackers=360, attacker_subnets=40).honest_links for seed in range(4)]
    assert min(seen) >= 1
    assert statistics.fmean(seen) >= 2
