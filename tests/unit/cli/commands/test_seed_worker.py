"""Addresses that a seeder names which waits for its learner."""

from __future__ import annotations

import pytest

from p2prl.cli.commands.seed_worker import one_of_each_family

FOUR, SIX, NEXT, HOME = "/ip4/8.8.4.4/tcp/443", "/ip6/2600::1/tcp/443", "/ip4/9.9.9.9/tcp/443", "/ip4/10.0.0.2/tcp/443"


@pytest.mark.parametrize(
    ("addresses", "expected"),
    [
        ((FOUR, NEXT, SIX), (FOUR, SIX)),
        ((SIX, HOME, FOUR), (FOUR, SIX)),
        ((HOME, SIX), (SIX,)),
        ((HOME, "/ip6/fd00::2/tcp/443"), (HOME,)),
        ((), ()),
    ],
)
def test_a_learner_is_told_a_public_address_of_each_ip_version(
    addresses: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert one_of_each_family(addresses) == expected
