"""Large runs: peers are looked up by name, records found by name, and the run's key is written seldom."""

from __future__ import annotations

import pytest

from p2prl.protocol import limits
from p2prl.protocol.kinds import Role
from p2prl.sim.machines import identity_of
from p2prl.swarm.events import LookUp, Register
from p2prl.swarm.peers import run_size
from p2prl.swarm.peers.connections import Connections
from tests.unit.swarm.peer_links import ME, NOW, A, B, connections, dialed, hello, introduction_of, record, with_learner


def crowd(count: int, at: float = NOW, first: int = 0) -> list[bytes]:
    """Records of so many strangers, each of a subnet of its own."""
    return [
        record(identity_of(f"c{index}"), at=at, address=f"/ip4/9.{index // 250}.{index % 250}.4/tcp/4001")
        for index in range(first, first + count)
    ]


def looked_up(links: Connections) -> LookUp:
    (command,) = [command for command in links.commands if isinstance(command, LookUp)]
    return command


def registered(links: Connections) -> Register:
    (command,) = [command for command in links.commands if isinstance(command, Register)]
    return command


@pytest.mark.parametrize(("found", "is_crowd"), [(15, False), (16, True)])
def test_a_run_whose_records_may_be_a_sample_is_read_and_written_by_name(found: int, is_crowd: bool) -> None:
    links = with_learner(max_neighbors=1, own_links=0)
    links.discovery.on_records(crowd(found), NOW)
    links.discovery.on_introduction(introduction_of(B), 1, NOW)
    assert looked_up(links) == (LookUp((B.peer_id,), is_sample=False) if is_crowd else LookUp())
    links.commands.clear()
    links.refresh(NOW + 30)
    register = registered(links)
    assert (register.under_run, register.under_name) == (True, is_crowd)
    assert looked_up(links) == (LookUp((B.peer_id,), is_sample=False) if is_crowd else LookUp())


def test_a_node_of_a_crowd_reads_its_own_record_while_it_may_find_another_process_with_its_key() -> None:
    links = with_learner(max_neighbors=1, own_links=0)
    links.discovery._local.started_ms = int(NOW * 1000)
    links.discovery.on_records(crowd(20), NOW)
    links.commands.clear()
    links.refresh(NOW + 179)
    assert looked_up(links) == LookUp((ME.peer_id,), is_sample=False)
    links.commands.clear()
    links.refresh(NOW + 181)
    assert [type(command) for command in links.commands] == [Register]


def test_who_has_all_other_links_waits_for_the_learner_without_haste() -> None:
    links = connections(max_neighbors=2, own_links=0)
    links.discovery.on_records(crowd(20), NOW)
    for peer in dialed(links):
        links.connected(peer, NOW, dialed=True)
    links.refresh(NOW + 1)
    assert links.discovery.next_refresh == NOW + 31
    assert [type(command) for command in links.commands] == [Register]
    links.lost(next(iter(links.links)), NOW + 2)
    links.commands.clear()
    links.refresh(NOW + 2)
    assert links.discovery.next_refresh == NOW + 5, "a place is free: other peers are wanted at once"
    assert looked_up(links) == LookUp((A.peer_id,))


def test_the_learner_reads_the_records_of_those_that_dialed_it() -> None:
    links = connections(Role.LEARNER, max_neighbors=1, own_links=0)
    links.discovery.on_records(crowd(20), NOW)
    linked = [identity_of(f"inbound{index}").peer_id for index in range(20)]
    for peer in linked:
        links.connected(peer, NOW)
        links.on_hello(hello(role=Role.VOLUNTEER), peer, NOW)
    links.commands.clear()
    links.refresh(NOW + 30)
    assert looked_up(links) == LookUp(tuple(linked[: run_size.MOST_NAMES]), is_sample=False)
    links.discovery.on_records([record(identity_of(f"inbound{index}"), at=NOW + 30) for index in range(16)], NOW + 30)
    links.commands.clear()
    links.refresh(NOW + 60)
    assert looked_up(links) == LookUp(tuple(linked[16:]), is_sample=False)


def test_a_third_of_many_peers_is_under_the_runs_key_at_any_time() -> None:
    links = with_learner(max_neighbors=1, own_links=0)
    written: list[float] = []
    present, turns = 0, 600  # a deviation of the share written is .014
    for turn in range(turns):
        now = NOW + 30 * turn
        if turn % 2 == 0:  # they last 90 s
            links.discovery.on_records(crowd(80, at=now), now)
        links.commands.clear()
        links.refresh(now)
        register = registered(links)
        assert register.under_name
        written += [now] * register.under_run
        present += bool(written) and now < written[-1] + limits.PEER_RECORD_TTL_S
    assert len(written) / turns == pytest.approx(1 / 8, abs=0.025)
    assert present / turns == pytest.approx(1 - (7 / 8) ** 3, abs=0.05)


def test_few_records_bring_the_full_rate_back() -> None:
    links = with_learner(max_neighbors=1, own_links=0)
    links.discovery.on_records(crowd(80), NOW)
    for turn in range(20):
        links.discovery.on_records(crowd(79, at=NOW + 90 + turn), NOW + 90 + turn)
        links.commands.clear()
        links.refresh(NOW + 90 + turn)
        register = registered(links)
        assert register.under_run


def test_the_address_book_of_a_crowd_is_small_and_keeps_who_is_needed() -> None:
    links = with_learner(max_neighbors=1, own_links=0)
    links.discovery.on_records([record(A), record(B)], NOW)
    links.discovery.on_introduction(introduction_of(B), 1, NOW)
    for turn in range(20):
        links.discovery.on_records(crowd(100, at=NOW + turn, first=100 * turn), NOW + turn)
    book = links.discovery._book.peers
    assert len(book) == run_size.MOST_KNOWN
    assert {A.peer_id, B.peer_id} <= book.keys()


def test_introductions_of_a_crowd_add_half_as_many_links() -> None:
    links = with_learner(max_neighbors=16, max_with_introduced=40)
    links.discovery.on_records(crowd(100), NOW)
    for turn in range(6):
        names = [identity_of(f"c{12 * turn + index}") for index in range(12)]
        links.discovery.on_introduction(introduction_of(*names), turn + 1, NOW)
        for peer in dialed(links):
            links.connected(peer, NOW, dialed=True)
    assert len(links.links) == 20
    assert links.discovery.is_settled(NOW), "those that are not linked are wanted no longer"
    links.lost(list(links.links)[-1], NOW)
    assert not links.discovery.is_settled(NOW)
