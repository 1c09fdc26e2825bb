"""A router opens ports when it is asked by NAT-PMP (RFC 6886), each for one inside endpoint."""

from __future__ import annotations

import pytest

from p2prl_lab.home_networks.packets import TCP, UDP
from p2prl_lab.home_networks.port_requests import ANSWER_BYTES, PortTable, address_request, port_request

HOME, OUTSIDE = "192.168.1.10", "44.131.7.1"


def granted(table: PortTable, protocol: int, inside: int, wanted: int, client: str = HOME) -> int:
    answer = table.answer(port_request(protocol, inside, wanted), client, OUTSIDE, 7.0)
    assert len(answer) == ANSWER_BYTES
    assert answer[:8] == bytes((0, 128 + (2 if protocol == TCP else 1), 0, 0, 0, 0, 0, 7))
    assert answer[8:10] == inside.to_bytes(2, "big")
    return int.from_bytes(answer[10:12], "big")


def test_the_outside_address_is_told() -> None:
    assert PortTable().answer(address_request(), HOME, OUTSIDE, 7.0) == b"\0\x80\0\0\0\0\0\x07\x2c\x83\x07\x01"


def test_a_port_is_opened_once_and_another_for_the_next() -> None:
    table = PortTable()
    assert granted(table, TCP, 5000, 4444) == 4444
    assert granted(table, TCP, 5000, 9999) == 4444, "as before"
    assert granted(table, UDP, 5000, 4444) == 4444, "another protocol"
    other = granted(table, TCP, 5000, 4444, client="192.168.1.11")
    assert other != 4444
    assert table.opened == {
        (TCP, 4444): (HOME, 5000), (UDP, 4444): (HOME, 5000), (TCP, other): ("192.168.1.11", 5000)
    }  # fmt: skip


def test_a_deletion_is_granted_without_effect() -> None:
    table = PortTable()
    granted(table, TCP, 5000, 4444)
    answer = table.answer(port_request(TCP, 5000, 4444, lifetime_s=0), HOME, OUTSIDE, 7.0)
    assert int.from_bytes(answer[10:12], "big") == 0
    assert len(table.opened) == 1


@pytest.mark.parametrize("body", [b"", b"\0", b"\x01\x02" + bytes(10), b"\0\x09", b"\0\x02" + bytes(9)])
def test_requests_that_are_none_get_no_answer(body: bytes) -> None:
    assert PortTable().answer(body, HOME, OUTSIDE, 7.0) == b""
