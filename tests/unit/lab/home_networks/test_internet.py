"""The lab's internet carries packets between sites, with delay, loss, cuts and moves, and counts them."""

from __future__ import annotations

import random

import pytest

from p2prl_lab.home_networks.internet import TALK_BYTES, Internet
from p2prl_lab.home_networks.line import QUEUE_S, Line
from p2prl_lab.home_networks.packets import TCP, UDP, Endpoint, read_packet
from p2prl_lab.home_networks.port_requests import PORT
from p2prl_lab.home_networks.sites import KINDS, LineSpeed, make_site, public_address, public_address6
from tests.unit.lab.home_networks.packet_makers import endpoint, is_intact, raw_packet

HOST: Endpoint = (public_address(0), 4001)
HOST6: Endpoint = (public_address6(0), 4001)
INSIDE = endpoint("192.168.1.10", 5000)
SPEED = LineSpeed(up_mbit=8.0, down_mbit=8.0, delay_s=0.010)


def internet(*kinds: str) -> Internet:
    rng = random.Random(3)
    sites = [make_site("host", "public", 0, SPEED, rng)]
    sites += [make_site(f"{kind}-{n}", kind, n, SPEED, rng) for n, kind in enumerate(kinds, 1)]
    return Internet(sites, rng)


def carried(net: Internet, name: str, data: bytes, now: float = 0.0) -> list[tuple[str, bytes]]:
    assert net.receive(name, data, now) == []
    return net.due(now + 10.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_question_reaches_the_host_and_its_answer_comes_back(kind: str) -> None:
    net = internet(kind)
    mine = (public_address6(1), 5000) if kind == "ipv6" else INSIDE
    host = HOST6 if kind == "ipv6" else HOST
    [(receiver, data)] = carried(net, f"{kind}-1", raw_packet(mine, host, b"question"))
    asked = read_packet(data)
    assert asked is not None
    assert (receiver, asked.target) == ("host", host)
    assert asked.source[0] == (mine[0] if kind == "ipv6" else public_address(1))
    assert (asked.source[1] == 5000) is (kind in ("preserving", "upnp", "gateway", "ipv6"))
    [(home, answer)] = carried(net, "host", raw_packet(host, asked.source, b"answer"))
    answered = read_packet(answer)
    assert answered is not None
    assert (home, answered.target, answered.source) == (f"{kind}-1", mine, host)
    assert is_intact(answer)
    assert is_intact(data)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stranger_does_not_reach_a_home(kind: str) -> None:
    net = internet(kind)
    target = (public_address6(1) if kind == "ipv6" else public_address(1), 5000)
    source = HOST6 if kind == "ipv6" else HOST
    assert carried(net, "host", raw_packet(source, target, b"hello")) == []


def test_private_and_unknown_addresses_lead_nowhere() -> None:
    net = internet("preserving")
    for address in ("10.0.0.1", "192.168.1.77", "44.191.0.1"):
        assert carried(net, "preserving-1", raw_packet(INSIDE, endpoint(address, 1), b"x")) == []


def test_a_packet_takes_its_time() -> None:
    net = internet("preserving")
    data = raw_packet(INSIDE, HOST, bytes(960))
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
    assert len(carried(net, "preserving-1", raw_packet(INSIDE, HOST))) == 1
    net.cut("preserving-1")
    assert carried(net, "preserving-1", raw_packet(INSIDE, HOST)) == []
    assert carried(net, "host", raw_packet(HOST, (public_address(1), 5000))) == []
    net.heal("preserving-1")
    assert len(carried(net, "host", raw_packet(HOST, (public_address(1), 5000)))) == 1


def test_a_moved_home_is_found_at_its_new_address_alone() -> None:
    net = internet("preserving")
    carried(net, "preserving-1", raw_packet(INSIDE, HOST))
    assert net.move("preserving-1") == ()
    old, new = (public_address(1), 5000), (public_address(1, move=1), 5000)
    assert carried(net, "host", raw_packet(HOST, new)) == []
    [(_, data)] = carried(net, "preserving-1", raw_packet(INSIDE, HOST))
    seen = read_packet(data)
    assert seen is not None
    assert seen.source == new
    assert len(carried(net, "host", raw_packet(HOST, new))) == 1
    assert carried(net, "host", raw_packet(HOST, old)) == []


def test_a_moved_machine_without_nat_gets_its_new_addresses() -> None:
    net = internet("preserving", "ipv6")
    assert net.move("host") == ("44.130.8.1/32", "3000:100:8::1/128")
    assert net.move("ipv6-2") == ("3000:102:8::1/128",)
    moved = (public_address(0, move=1), 4001)
    assert len(carried(net, "preserving-1", raw_packet(INSIDE, moved))) == 1
    assert carried(net, "preserving-1", raw_packet(INSIDE, HOST)) == []


def test_traffic_is_counted_and_a_conversation_noted() -> None:
    net = internet("preserving")
    carried(net, "preserving-1", raw_packet(INSIDE, HOST, bytes(TALK_BYTES - 1)), 5.0)
    way = net.traffic["preserving-1", "host"]
    assert (way.payload_bytes, way.talked_at) == (TALK_BYTES - 1, None)
    assert way.sent_bytes == way.delivered_bytes == TALK_BYTES - 1 + 40
    carried(net, "preserving-1", raw_packet(INSIDE, HOST, b"x"), 20.0)
    assert way.talked_at == way.last_at == pytest.approx(20.0, abs=0.1)
    carried(net, "host", raw_packet(HOST, (public_address(1), 9), bytes(100)))
    refused = net.traffic["host", "preserving-1"]
    assert (refused.sent_bytes, refused.delivered_bytes) == (140, 0)
    net.forget_traffic()
    assert not net.traffic


def request(opcode: int, inside: int, wanted: int, lifetime_s: int) -> bytes:
    body = bytes((0, opcode)) + b"\0\0" + inside.to_bytes(2, "big") + wanted.to_bytes(2, "big")
    body += lifetime_s.to_bytes(4, "big")
    return raw_packet(endpoint("192.168.1.10", 40_000), endpoint("192.168.1.1", PORT), body, protocol=UDP)


def test_a_router_that_opens_ports_opens_one() -> None:
    net = internet("upnp", "preserving")
    ask = raw_packet(endpoint("192.168.1.10", 40_000), endpoint("192.168.1.1", PORT), b"\0\0", protocol=UDP)
    [(home, answer)] = net.receive("upnp-1", ask, 1.0)
    assert home == "upnp-1"
    assert answer[28:30] == b"\0\x80"
    assert answer[-4:] == public_address(1)
    [(_, answer)] = net.receive("upnp-1", request(2, 5000, 4444, 3_600), 1.0)
    assert answer[28:32] == b"\0\x82\0\0"
    assert answer[36:40] == (5000).to_bytes(2, "big") + (4444).to_bytes(2, "big")
    arrived = carried(net, "host", raw_packet(HOST, (public_address(1), 4444), b"hello"))
    assert [name for name, _ in arrived] == ["upnp-1"]
    found = read_packet(arrived[0][1])
    assert found is not None
    assert (found.target, found.protocol) == (INSIDE, TCP)
    assert net.receive("preserving-2", request(2, 5000, 4444, 3_600), 1.0) == []


def test_requests_that_are_none_get_no_answer() -> None:
    net = internet("upnp")
    router = endpoint("192.168.1.1", PORT)
    for body in (b"", b"\0", b"\x01\x02" + bytes(10), b"\0\x09", b"\0\x02" + bytes(9)):
        assert net.receive("upnp-1", raw_packet(INSIDE, router, body, protocol=UDP), 0.0) == []
    assert net.receive("upnp-1", raw_packet(INSIDE, router, b"\0\0"), 0.0) == []
