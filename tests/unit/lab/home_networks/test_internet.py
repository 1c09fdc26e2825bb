"""The lab's internet carries packets between sites, with delay, loss, cuts and moves, and counts them."""

from __future__ import annotations

import random

import pytest

from p2prl_lab.home_networks.internet import TALK_BYTES, Internet
from p2prl_lab.home_networks.line import QUEUE_S, Line
from p2prl_lab.home_networks.packets import Endpoint
from p2prl_lab.home_networks.sites import KINDS, LineSpeed, make_site, public_address, public_address6
from tests.unit.lab.home_networks.packet_makers import endpoint, raw_packet

HOST: Endpoint = (public_address(0), 4001)
HOST6: Endpoint = (public_address6(0), 4001)
INSIDE = endpoint("192.168.1.10", 5000)
HOME: Endpoint = (public_address(1), 5000)
SPEED = LineSpeed(up_mbit=8.0, down_mbit=8.0, delay_s=0.010)


def internet(*kinds: str) -> Internet:
    rng = random.Random(3)
    sites = [make_site("host", "public", 0, SPEED)]
    sites += [make_site(f"{kind}-{n}", kind, n, SPEED) for n, kind in enumerate(kinds, 1)]
    return Internet(sites, rng)


def carried(net: Internet, name: str, data: bytes, now: float = 0.0) -> list[tuple[str, bytes]]:
    net.receive(name, data, now)
    return net.due(now + 10.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_packet_arrives_as_it_left(kind: str) -> None:
    net = internet(kind)
    mine, host = ((public_address6(1), 5000), HOST6) if kind == "ipv6" else (HOME, HOST)
    question, answer = raw_packet(mine, host, b"question"), raw_packet(host, mine, b"answer")
    assert carried(net, f"{kind}-1", question) == [("host", question)]
    assert carried(net, "host", answer) == [(f"{kind}-1", answer)]
    assert not net.untranslated


def test_a_packet_with_an_inside_address_is_lost_and_counted() -> None:
    net = internet("preserving")
    for _ in range(2):
        assert carried(net, "preserving-1", raw_packet(INSIDE, HOST, b"leaked")) == []
    assert net.untranslated == {"preserving-1": 2}


def test_private_and_unknown_addresses_lead_nowhere() -> None:
    net = internet("preserving")
    for address in ("10.0.0.1", "192.168.1.77", "44.191.0.1"):
        assert carried(net, "preserving-1", raw_packet(HOME, endpoint(address, 1), b"x")) == []


@pytest.mark.parametrize("size", [1_280, 1_281])
def test_a_small_line_loses_longer_packets_both_ways(size: int) -> None:
    net = internet("small", "preserving")
    payload = bytes(size - 40)
    assert bool(carried(net, "small-1", raw_packet(HOME, HOST, payload))) is (size == 1_280)
    assert bool(carried(net, "host", raw_packet(HOST, HOME, payload))) is (size == 1_280)
    assert carried(net, "preserving-2", raw_packet((public_address(2), 1), HOST, payload))


def test_a_packet_takes_its_time() -> None:
    net = internet("preserving")
    data = raw_packet(HOME, HOST, bytes(960))
    assert len(data) == 1_000
    net.receive("preserving-1", data, 0.0)
    takes = 2 * (1_000 / 1e6 + 0.010)
    assert net.next_deadline() == pytest.approx(takes / 2)
    assert net.due(takes - 1e-6) == []
    assert net.next_deadline() == pytest.approx(takes)
    assert len(net.due(takes + 1e-6)) == 1
    assert net.next_deadline() is None


def test_a_line_queues_then_drops_and_loses_its_share() -> None:
    rng = random.Random(1)
    line = Line(rate_bytes_s=1_000.0, delay_s=0.5)
    arrivals = [line.send(100, 0.0, rng) for _ in range(5)]
    assert [a for a in arrivals if a is not None] == pytest.approx([0.6, 0.7, 0.8])
    assert arrivals[3:] == [None, None], f"more than {QUEUE_S} s wait"
    assert Line(rate_bytes_s=0.0, delay_s=0.5).send(10**9, 1.0, rng) == 1.5
    lossy = Line(rate_bytes_s=0.0, loss=0.25)
    assert 0.2 < sum(lossy.send(1, 0.0, rng) is None for _ in range(2_000)) / 2_000 < 0.3


def test_a_cut_site_is_silent_until_it_is_healed() -> None:
    net = internet("preserving")
    assert len(carried(net, "preserving-1", raw_packet(HOME, HOST))) == 1
    net.cut("preserving-1")
    assert carried(net, "preserving-1", raw_packet(HOME, HOST)) == []
    assert carried(net, "host", raw_packet(HOST, (public_address(1), 5000))) == []
    net.heal("preserving-1")
    assert len(carried(net, "host", raw_packet(HOST, (public_address(1), 5000)))) == 1


def test_a_moved_site_is_found_at_its_new_addresses_alone() -> None:
    net = internet("preserving", "ipv6")
    assert net.move("preserving-1") == ("44.131.8.1/32",)
    assert net.move("host") == ("44.130.8.1/32", "3000:100:8::1/128")
    assert net.move("ipv6-2") == ("3000:102:8::1/128",)
    host, home = (public_address(0, move=1), 4001), (public_address(1, move=1), 5000)
    assert carried(net, "preserving-1", raw_packet(HOME, host)) == [], "its old address is another's now"
    assert len(carried(net, "preserving-1", raw_packet(home, host))) == 1
    assert carried(net, "preserving-1", raw_packet(home, HOST)) == []
    assert len(carried(net, "host", raw_packet(host, home))) == 1
    assert carried(net, "host", raw_packet(host, HOME)) == []


def test_traffic_is_counted_and_a_conversation_noted() -> None:
    net = internet("preserving")
    carried(net, "preserving-1", raw_packet(HOME, HOST, bytes(TALK_BYTES - 1)), 5.0)
    way = net.traffic["preserving-1", "host"]
    assert (way.payload_bytes, way.talked_at) == (TALK_BYTES - 1, None)
    assert way.sent_bytes == way.delivered_bytes == TALK_BYTES - 1 + 40
    carried(net, "preserving-1", raw_packet(HOME, HOST, b"x"), 20.0)
    assert way.talked_at == way.last_at == pytest.approx(20.0, abs=0.1)
    net.forget_traffic()
    assert not net.traffic
