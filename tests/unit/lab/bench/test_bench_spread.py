"""The spread benchmark: bounds and trees against arithmetic, schemes on small swarms, files of links."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import ConfigError
from p2prl.sim.virtual_time import START, VirtualLoop
from p2prl_lab.bench.spread import product_relay
from p2prl_lab.bench.spread.benchmark import (
    SCHEMES,
    SpreadConfig,
    as_documents,
    as_markdown,
    judge,
    run_spread,
)
from p2prl_lab.bench.spread.home_links import (
    HOME_LINKS,
    LINK_SETS,
    HomeLink,
    Population,
    links_of,
    populate,
    read_links,
)
from p2prl_lab.bench.spread.outcome import Outcome, SpreadRow, row_of
from p2prl_lab.bench.spread.paced_links import PacedLink, PacedLinks
from p2prl_lab.bench.spread.tree_schemes import Tree, chain, fast_tree, star
from tests.json_shapes import breaches

MIB = 1024 * 1024
MBIT = 125_000.0


def swarm(peers: int, *, churn: float = 0.0, seed: int = 0, mib: int = 16) -> Population:
    return populate(
        HOME_LINKS,
        peers=peers,
        size_bytes=mib * MIB,
        chunk_bytes=128 * 1024,
        source_mbit=100.0,
        churn=churn,
        seed=seed,
    )


def even(peers: int, *, chunks: int = 8) -> Population:
    """Equal links of 1 MB/s up and 10 down, and a learner of 2 MB/s, in one region."""
    link = HomeLink(1e6, 10e6, 0)
    return Population(
        size_bytes=chunks * 100_000,
        chunk_bytes=100_000,
        source=HomeLink(2e6, 10e6, 0),
        peers=(link,) * peers,
        deaths={},
        seed=0,
    )


NOTHING = Outcome(finished_at={}, source_bytes=0.0, sent_bytes=0.0, arrived_bytes=0.0, useful_bytes=0.0)


def quiet(share: float) -> None:
    assert 0.0 <= share <= 1.0


def test_the_bound_is_the_largest_of_its_three_terms() -> None:
    made = even(10)
    assert made.lower_bound_s() == pytest.approx(10 * 0.8 / (2 + 10))  # the swarm's uplinks
    assert even(1).lower_bound_s() == pytest.approx(0.8 / 2)  # the learner's
    slow = Population(
        size_bytes=800_000,
        chunk_bytes=100_000,
        source=HomeLink(2e6, 10e6, 0),
        peers=(*even(19).peers, HomeLink(1e6, 0.1e6, 0)),
        deaths={},
        seed=0,
    )
    assert slow.lower_bound_s() == pytest.approx(8.0)  # the slowest downlink's
    assert slow.lower_bound_s(0.95) == pytest.approx(19 * 0.8 / (2 + 20)), "which 95 % of the peers need not wait for"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_scheme_beats_the_bound_and_a_seed_repeats(scheme: str) -> None:
    made = swarm(12)
    first = row_of(scheme, made, 0.0, SCHEMES[scheme](made, quiet))
    assert first.survivors_finished == 1.0
    assert first.t50 <= first.t95 <= first.t100
    if scheme != "relays":  # its servers' uplinks are not in the bound
        assert first.t100 >= first.lower_bound
        assert first.t95 >= first.lower_bound_95
    assert first.source_copies >= 1.0 - 1e-9
    assert (first.control_share > 0) is (scheme == "p2prl")
    assert row_of(scheme, swarm(12), 0.0, SCHEMES[scheme](swarm(12), quiet)) == first


def test_times_of_star_and_chain() -> None:
    made = even(5)
    by_star = Tree(made, star(made)).run(quiet)
    # Five copies of 8 chunks of 50 ms leave one after the other; the last bit takes 15 ms.
    assert max(by_star.finished_at.values()) == pytest.approx(5 * 8 * 0.05 + 0.015)
    by_chain = Tree(made, chain(made)).run(quiet)
    # A hop carries a chunk in 100 ms, the first one from the learner in 50; each adds 15 ms.
    assert max(by_chain.finished_at.values()) == pytest.approx(0.05 + 3 * 0.1 + 8 * 0.1 + 5 * 0.015)
    assert by_star.source_bytes == 5 * made.size_bytes
    assert by_chain.source_bytes == made.size_bytes


def test_the_tree_overloads_no_uplink() -> None:
    made = swarm(200)
    parents = fast_tree(made)
    uplinks = [*(link.upload_bytes_s for link in made.peers), made.source.upload_bytes_s]
    children = [parents.count(peer) for peer in range(201)]
    rate = min(uplink / count for uplink, count in zip(uplinks, children, strict=True) if count)
    assert sum(children) == 200
    assert rate >= 4 * MBIT, "whoever has children feeds each at more than the smallest uplink"
    for peer in range(200):
        seen = set()
        while peer != 200:
            assert peer not in seen, "a circle"
            seen.add(peer)
            peer = parents[peer]


def test_relay_meets_its_bounds_in_a_small_swarm() -> None:
    for seed, churn in ((1, 0.0), (2, 0.3)):
        made = swarm(24, churn=churn, seed=seed, mib=32)
        row = row_of("p2prl", made, churn, SCHEMES["p2prl"](made, quiet))
        assert row.survivors_finished == 1.0
        assert row.source_copies <= 3.0
        assert row.waste_share <= 0.01
        # A death is detected after three seconds, and a peer may be affected by two: long for so short a transfer.
        assert row.t95 <= 1.2 * row.lower_bound_95 + (6.0 if churn else 0.0)


def test_deaths_have_their_share_and_survivors_finish() -> None:
    made = swarm(20, churn=0.3)
    assert len(made.deaths) == 6
    assert all(0.0 <= at <= swarm(20).lower_bound_s() for at in made.deaths.values())
    outcome = Outcome(
        finished_at={peer: float(peer + 1) for peer in range(20)},
        source_bytes=0.0,
        sent_bytes=0.0,
        arrived_bytes=200.0,
        useful_bytes=150.0,
    )
    row = row_of("x", made, 0.3, outcome)
    alive = sorted(set(range(20)) - made.deaths.keys())
    assert row.t100 == alive[-1] + 1
    assert row.t50 == alive[6] + 1
    assert row.waste_share == 0.25


def test_unfinished_peers_have_null_times() -> None:
    made = swarm(4)
    row = row_of(
        "p2prl", made, 0.0, Outcome(finished_at={}, source_bytes=0, sent_bytes=0, arrived_bytes=0, useful_bytes=0)
    )
    assert math.isinf(row.t50)
    document = as_documents([row])[0]
    assert document["t50"] is None
    assert breaches(document, "p2prl bench spread", at=".results[]") == []
    named = ("links", "n", "churn", "t95_over_bound", "t100_over_bound", "star_over_bound", "source_copies")
    assert {*named, "waste_share", "survivors_finished", "cpu_s"} <= document.keys()
    assert "never" in as_markdown([row])
    assert [verdict.met for verdict in judge([row]) if verdict.demand == "share of survivors not finished"] == [False]


def test_a_file_of_links(tmp_path: Path) -> None:
    path = tmp_path / "links"
    path.write_text("# homes\n100 20 0.75\n\n25, 5, 0.25  # the slow\n")
    assert read_links(path) == ((100.0, 20.0, 0.75), (25.0, 5.0, 0.25))
    made = populate(
        read_links(path), peers=8, size_bytes=MIB, chunk_bytes=MIB, source_mbit=10, churn=0, seed=0
    )  # fmt: skip
    assert sorted(link.download_bytes_s / MBIT for link in made.peers) == [25.0] * 2 + [100.0] * 6
    assert {link.upload_bytes_s / MBIT for link in made.peers} == {16.0, 4.0}, "four fifths of each uplink"


def test_a_file_whose_last_line_repeats_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "links"
    path.write_text("100 20\n25 5\n50 10\n100 20\n")
    made = populate(
        read_links(path), peers=8, size_bytes=MIB, chunk_bytes=MIB, source_mbit=10, churn=0, seed=0
    )  # fmt: skip
    downlinks = sorted(link.download_bytes_s / MBIT for link in made.peers)
    assert downlinks == [25.0] * 2 + [50.0] * 2 + [100.0] * 4


@pytest.mark.parametrize("name", LINK_SETS)
def test_a_named_set_of_links_is_drawn_by_its_seed(name: str) -> None:
    def drawn(seed: int) -> tuple[HomeLink, ...]:
        made = populate(
            links_of(name), peers=40, size_bytes=MIB, chunk_bytes=MIB, source_mbit=10, churn=0, seed=seed
        )  # fmt: skip
        return made.peers

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert len(drawn(1)) == 40


def test_what_the_named_sets_hold() -> None:
    def uplinks(name: str) -> list[float]:
        made = populate(
            links_of(name), peers=1000, size_bytes=MIB, chunk_bytes=MIB, source_mbit=10, churn=0, seed=5
        )  # fmt: skip
        return sorted(link.upload_bytes_s / MBIT for link in made.peers)

    offered = 0.8
    lognormal = uplinks("lognormal")
    assert lognormal[500] == pytest.approx(10 * offered, rel=0.1)
    assert lognormal[841] == pytest.approx(10 * offered * math.e, rel=0.15), "one σ above the median"
    assert 190 <= sum(rate == pytest.approx(offered) for rate in uplinks("poor")) <= 230
    assert sum(rate == pytest.approx(offered) for rate in uplinks("poorest")) == 950
    assert uplinks("home")[500] == pytest.approx(20 * offered)
    assert len(set(uplinks("mixed"))) > 150


def test_the_least_time_of_a_star() -> None:
    assert even(10).star_s() == pytest.approx(10 * 0.8 / 2)
    slow = Population(
        size_bytes=800_000,
        chunk_bytes=100_000,
        source=HomeLink(2e6, 10e6, 0),
        peers=(HomeLink(1e6, 0.1e6, 0), HomeLink(1e6, 10e6, 0)),
        deaths={1: 0.1},
        seed=0,
    )
    assert slow.star_s() == pytest.approx(8.0), "the slowest survivor's downlink"
    assert row_of("x", slow, 0.5, NOTHING).star_over_bound == pytest.approx(1.0)


def test_a_slow_sender_does_not_hold_up_the_others_on_a_downlink() -> None:
    loop = VirtualLoop()
    links = PacedLinks(loop, [PacedLink(1e5, 1e9), PacedLink(1e6, 1e9), PacedLink(1.0, 2e6)], near_s=0.0)
    arrived: list[float] = []
    for source in (0, 1):
        links.send(source, 2, 1_000_000, lambda: arrived.append(loop.now - START), lambda: None)
    loop.run_until(START + 20.0)
    assert arrived == pytest.approx([1.0, 10.0])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), min_size=1, max_size=30), st.floats(1e3, 1e6))
def test_a_downlink_never_takes_more_than_its_rate(chunks: list[tuple[int, int]], rate: float) -> None:
    loop = VirtualLoop()
    links = PacedLinks(loop, [*(PacedLink(2.0**n * 1e4, 1e9) for n in range(4)), PacedLink(1.0, rate)], near_s=0.01)
    arrived: list[tuple[float, int]] = []
    for source, kilobytes in chunks:
        links.send(source, 4, 1000 * kilobytes, lambda s=kilobytes: arrived.append((loop.now - START, s)), lambda: None)  # type: ignore[misc]
    loop.run_until(START + 1e5)
    assert len(arrived) == len(chunks)
    total = 0
    for at, kilobytes in arrived:
        total += 1000 * kilobytes
        assert total <= rate * (at - 0.01 + 1e-6), "but for rounding"


def test_control_bytes_delay_the_next_chunk() -> None:
    loop = VirtualLoop()
    links = PacedLinks(loop, [PacedLink(1e6, 1e9), PacedLink(1e6, 1e9)], near_s=0.0)
    arrived: list[float] = []
    links.charge(0, 500_000)
    for _ in range(2):
        links.send(0, 1, 1_000_000, lambda: arrived.append(loop.now - START), lambda: None)
    loop.run_until(START + 10.0)
    assert arrived == pytest.approx([1.5, 2.5])
    assert (links.links[0].sent_bytes, links.links[0].control_bytes) == (2e6, 5e5)


@pytest.mark.parametrize("text", ["", "100", "100 0", "a b", "1 2 3 4", "nan 1", "100 -20"])
def test_a_bad_file_of_links_is_refused_by_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "links"
    path.write_text("100 20\n" + text if text else "# nothing\n")
    with pytest.raises(ConfigError) as refused:
        read_links(path)
    assert str(path) in str(refused.value)
    assert not text or "line 2" in str(refused.value)


def test_bad_settings_are_refused() -> None:
    for wrong in (
        {"schemes": ("telepathy",)},
        {"schemes": ()},
        {"peers": (0,)},
        {"peers": (5_000,)},
        {"churn": (1.0,)},
        {"size_bytes": 0},
        {"learner_mbit": 0.0},
        {"learner_mbit": math.nan},
        {"links": ()},
    ):
        with pytest.raises(ConfigError):
            SpreadConfig(**wrong)


def test_demands_are_judged_on_the_rows_that_measure_them() -> None:
    config = SpreadConfig(schemes=("p2prl",), peers=(8,), churn=(0.0,), size_bytes=16 * MIB)
    stages: list[tuple[str, float]] = []
    rows = run_spread(config, lambda stage, share: stages.append((stage, share)))
    assert [(row.scheme, row.n) for row in rows] == [("p2prl", 8)]
    assert stages[-1][1] == pytest.approx(1.0)
    judged = {verdict.demand: verdict for verdict in judge(rows)}
    assert judged["t95 over its bound, 64 peers and more"].met is None
    assert judged["t100 over its bound, 8 peers"].measured == pytest.approx(rows[0].t100_over)
    late = SpreadRow(**{**{f: getattr(rows[0], f) for f in rows[0].__slots__}, "t100": 1e9})
    assert [v.met for v in judge([late]) if v.demand == "t100 over its bound, 8 peers"] == [False]


def test_volunteers_of_every_region_are_linked_with_each_other() -> None:
    """When peers were linked only within their region, 512 peers took five times as long as 64."""
    population = swarm(200)
    made = product_relay._Swarm(population)
    made.introduce()
    links = {
        number: {int(peer) for peer in relay._state.neighbors} - {made.source}
        for number, relay in enumerate(made.relays[: made.source])
    }
    crossing = [population.peers[one].region != population.peers[other].region for one in links for other in links[one]]
    assert 0.2 < sum(crossing) / len(crossing) < 0.5
    reached, waiting = {0}, [0]
    while waiting:
        fresh = links[waiting.pop()] - reached
        reached |= fresh
        waiting += fresh
    assert len(reached) == 200
