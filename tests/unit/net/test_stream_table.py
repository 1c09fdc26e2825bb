"""Shares of incoming streams and of the memory for unfinished frames."""

from __future__ import annotations

import random

import pytest

from p2prl.errors import RemoteProtocolError
from p2prl.net.transports import framing
from p2prl.net.transports.stream_table import StreamId, StreamTable
from p2prl.protocol import limits
from p2prl.protocol.identity import PeerId

HERE, THERE = "/ip4/6.6.6.6/tcp/1", "/ip4/9.9.9.9/tcp/1"
A, B, C = PeerId("A"), PeerId("B"), PeerId("C")
LINKED = 1


def opened(table: StreamTable, peer: PeerId, address: str = HERE, importance: int = 0, now: float = 0.0) -> StreamId:
    stream, dropped = table.open(peer, address, importance, now)
    assert dropped == []
    return stream


def test_a_peers_fifth_stream_replaces_its_first() -> None:
    table = StreamTable(max_streams=100)
    first, *_ = (opened(table, A) for _ in range(framing.MAX_INBOUND_STREAMS_PER_PEER))
    fifth, dropped = table.open(A, HERE, 0, 1.0)
    assert dropped == [first]
    assert table.streams_of(A)[-1] == fifth
    assert len(table) == framing.MAX_INBOUND_STREAMS_PER_PEER


def test_in_a_full_table_the_fullest_subnet_loses_its_idlest_stream() -> None:
    table = StreamTable(max_streams=8)
    flood = [opened(table, PeerId(f"flood{index // 4}"), now=float(index)) for index in range(8)]
    table.finished(flood[0], 0, 20.0)
    honest, dropped = table.open(A, THERE, 0, 21.0)
    assert dropped == [flood[1]]
    same_subnet, dropped = table.open(B, HERE, 0, 22.0)
    assert dropped == [flood[4]], "of the peer with most of them"
    assert {honest, same_subnet} <= {*table.streams_of(A), *table.streams_of(B)}


def test_linked_peers_keep_two_streams_each() -> None:
    table = StreamTable(max_streams=6)
    linked = [opened(table, A, importance=LINKED) for _ in range(2)]
    for index in range(4):
        opened(table, PeerId(f"flood{index}"), THERE)
    for index in range(100):
        _, dropped = table.open(PeerId(f"more{index}"), THERE, 0, 1.0 + index)
        assert not set(dropped) & set(linked)
    third, _ = table.open(A, HERE, LINKED, 200.0)
    assert third in table.streams_of(A)
    assert len(table) == 6
    for index in range(100):
        table.open(PeerId(f"last{index}"), HERE, 0, 300.0 + index)
    assert table.streams_of(A) == [linked[1], third], "the newest two"


def test_a_stranger_becomes_a_linked_peer_with_its_first_frame() -> None:
    table = StreamTable(max_streams=10)
    stream = opened(table, A)
    with pytest.raises(RemoteProtocolError):
        table.began(stream, limits.MAX_CONTROL_FRAME_BYTES + 1, 0.0)
    table.finished(stream, LINKED, 1.0)
    table.began(stream, limits.MAX_FRAME_BYTES, 2.0)


def test_bytes_of_unfinished_frames_are_counted_and_released() -> None:
    table = StreamTable(max_streams=10)
    one, two = opened(table, A, importance=LINKED), opened(table, B, importance=LINKED)
    table.began(one, 1000, 0.0)
    assert table.received(one, 600) == []
    assert table.received(two, 50) == []
    assert table.held_bytes == 650
    table.finished(one, LINKED, 1.0)
    assert table.held_bytes == 50
    table.close(two)
    table.close(two)
    assert table.held_bytes == 0
    assert table.received(two, 5) == []


def test_one_peer_holds_no_more_than_its_share() -> None:
    table = StreamTable(max_streams=10)
    streams = [opened(table, A, importance=LINKED) for _ in range(3)]
    for stream in streams[:2]:
        assert table.received(stream, framing.MAX_HELD_BYTES_PER_PEER // 2) == []
    assert table.received(streams[2], 1) == [streams[2]]


def test_the_largest_holder_pays_and_strangers_have_a_share() -> None:
    table = StreamTable(max_streams=10, max_held_bytes=1000)
    linked = opened(table, A, importance=LINKED)
    small, large = opened(table, B), opened(table, C)
    table.received(linked, 500)
    table.received(small, 200)
    table.received(large, 300)
    assert table.received(small, 1) == [large], "strangers hold more than an eighth"
    assert table.received(linked, 350) == [small]
    newcomer = opened(table, B)
    table.received(newcomer, 100)
    other = opened(table, C, importance=LINKED)
    table.received(other, 50)
    assert table.received(other, 100) == [linked], "a newcomer's few bytes are safe"
    assert table.held_bytes == 250


@pytest.mark.parametrize("seed", range(5))
def test_no_history_exceeds_the_bounds(seed: int) -> None:
    rng = random.Random(seed)
    table = StreamTable(max_streams=20, max_held_bytes=10_000)
    alive: set[StreamId] = set()
    for step in range(2000):
        peer = PeerId(f"p{rng.randrange(12)}")
        action = rng.random()
        if action < 0.3 or not alive:
            stream, dropped = table.open(peer, f"/ip4/9.9.{rng.randrange(3)}.1", rng.randrange(3), float(step))
            alive.add(stream)
            alive -= set(dropped)
        else:
            stream = rng.choice(sorted(alive))
            if action < 0.7:
                alive -= set(table.received(stream, rng.randrange(3000)))
            elif action < 0.9:
                table.finished(stream, rng.randrange(3), float(step))
            else:
                table.close(stream)
                alive.discard(stream)
        assert len(table) == len(alive) <= 20
        assert 0 <= table.held_bytes <= 10_000
        assert all(len(table.streams_of(PeerId(f"p{i}"))) <= 4 for i in range(12))
    for stream in alive:
        table.close(stream)
    assert table.held_bytes == 0


def test_streams_suffice_for_every_link_at_once() -> None:
    table = StreamTable(max_streams=framing.max_streams(1024))
    for index in range(1024):
        for _ in range(framing.STREAMS_PER_LINK):
            opened(table, PeerId(f"p{index}"), importance=LINKED)
    stranger, dropped = table.open(A, THERE, 0, 1.0)
    assert dropped == []
    assert stranger in table.streams_of(A)
