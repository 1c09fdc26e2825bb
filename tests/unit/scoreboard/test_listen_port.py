"""The board's port: what keeps it from being used is named with what helps."""

from __future__ import annotations

import socket

import pytest

from p2prl.errors import MachineError
from p2prl.net.listen_addresses import has_ipv6
from p2prl.scoreboard.web.listen_port import bind

TEST_NET = "203.0.113.7"
"""Of a range that no machine has (RFC 5737)."""


def test_a_port_that_is_taken() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(MachineError, match=f"port {port} on 127.0.0.1: Address already in use") as found:
            bind("127.0.0.1", port)
        assert "--port" in found.value.remedy
        with pytest.raises(MachineError) as found:
            bind("127.0.0.1", port, host_option="--listen", port_option="--listen")
        assert "with --listen," in found.value.remedy


@pytest.mark.parametrize("host", [TEST_NET, "no host"])
def test_an_address_that_is_not_this_machines(host: str) -> None:
    with pytest.raises(MachineError, match=f"this machine has no address {host}$") as found:
        bind(host, 0)
    assert "--host" in found.value.remedy
    assert "--port" not in found.value.remedy


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_an_address_of_ipv6() -> None:
    with bind("::1", 0) as listener:
        assert listener.family == socket.AF_INET6
