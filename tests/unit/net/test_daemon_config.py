"""The daemon's command line: who relays, who looks for relays, and through which."""

from __future__ import annotations

from pathlib import Path

import pytest

from p2prl.errors import ConfigError
from p2prl.net.transports.hivemind.daemon_config import DaemonConfig, daemon_arguments, one_address_each

FIRST = "12D3KooWKsxBt8y2z6ohRpkTQJozYS3zG9aYyPpXdTx7JfWd7RHK"
SECOND = "12D3KooWP9ACan3DH7JK9dn9vvRJaj9y4w9HcdFdJM39o1L7HwGE"
LINK = (
    f"/ip4/44.130.7.1/tcp/4001/p2p/{FIRST}",
    f"/ip6/3000:100:7::1/tcp/4001/p2p/{FIRST}",
    f"/ip4/44.131.7.1/tcp/4001/p2p/{SECOND}",
)


def flags(config: DaemonConfig) -> dict[str, str]:
    arguments = daemon_arguments(config, control_path=Path("/c"), key_file=Path("/k"))
    return dict(argument[1:].split("=", 1) for argument in arguments)


def test_a_peer_of_unknown_reach_looks_for_relays_among_the_given_ones_alone() -> None:
    found = flags(DaemonConfig(relays=LINK))
    assert (found["autoRelay"], found["relayDiscovery"], found["forceReachabilityPublic"]) == ("1", "0", "0")
    assert found["trustedRelays"] == f"{LINK[0]},{LINK[2]}"


def test_a_public_peer_needs_no_relay_and_relays_without_small_limits() -> None:
    found = flags(DaemonConfig(relays=LINK, is_public=True))
    assert (found["autoRelay"], found["forceReachabilityPublic"], found["relayService"]) == ("0", "1", "1")
    assert "trustedRelays" not in found  # the daemon refuses to start with relays and without autorelay


def test_circuits_of_strangers_fit_into_memory() -> None:
    """The daemon grants 16 circuits to each of 128 reservations, and a circuit has two buffers."""
    assert 2 * int(flags(DaemonConfig(is_public=True))["relayBufferSize"]) * 16 * 128 <= 128 * 1024 * 1024


def test_without_relays_there_is_no_autorelay() -> None:
    found = flags(DaemonConfig())
    assert found["autoRelay"] == "0"
    assert "trustedRelays" not in found


def test_each_relay_counts_once() -> None:
    assert one_address_each(LINK) == (LINK[0], LINK[2])
    assert one_address_each(()) == ()


def test_a_relay_is_named_by_an_address_that_this_machine_can_dial() -> None:
    only6 = frozenset({6})
    assert one_address_each(LINK, only6) == (LINK[1], LINK[2])  # the second has no other
    assert one_address_each(LINK, frozenset({4})) == (LINK[0], LINK[2])
    named = f"/dns4/a.example/tcp/1/p2p/{FIRST}", f"/dns/b.example/tcp/1/p2p/{FIRST}"
    assert one_address_each(named, only6) == named[1:]
    assert flags(DaemonConfig(relays=LINK[:2], families=only6))["trustedRelays"] == LINK[1]


def test_malformed_addresses_are_refused() -> None:
    with pytest.raises(ConfigError):
        flags(DaemonConfig(relays=("/ip4/1.2.3/tcp/1/p2p/" + FIRST,)))
    with pytest.raises(ConfigError):
        flags(DaemonConfig(listen=("nowhere",)))
