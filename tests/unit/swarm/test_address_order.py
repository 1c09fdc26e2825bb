"""Order of a machine's many addresses in its record and link."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from p2prl.swarm.peers.reachability import foremost

PUBLIC4, SECOND4 = "/ip4/44.130.7.1/tcp/1", "/ip4/44.130.7.2/tcp/1"
PUBLIC6, SECOND6, THIRD6 = (f"/ip6/2606:4700::{n}/tcp/1" for n in (1, 2, 3))
PRIVATE4, PRIVATE6 = "/ip4/192.168.1.10/tcp/1", "/ip6/fd00::1/tcp/1"
LOOP4, LOOP6 = "/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1"
NAMED, CIRCUIT = "/dns4/a.example/tcp/1", "/ip4/44.130.7.9/tcp/1/p2p/12D3KooWX/p2p-circuit"
ALL = (LOOP4, LOOP6, PRIVATE4, PRIVATE6, THIRD6, SECOND6, PUBLIC6, SECOND4, PUBLIC4, NAMED, CIRCUIT)


def test_every_way_comes_before_a_second_of_one() -> None:
    found = foremost(ALL, 8)
    assert found == (SECOND4, THIRD6, PRIVATE4, PRIVATE6, NAMED, CIRCUIT, PUBLIC4, SECOND6)
    assert foremost((PUBLIC6, SECOND6, THIRD6, PUBLIC4), 2) == (PUBLIC4, PUBLIC6)


def test_the_machines_own_come_last_and_alone_when_there_are_no_others() -> None:
    assert foremost((LOOP4, PRIVATE4, LOOP6), 8) == (PRIVATE4, LOOP4, LOOP6)
    assert foremost((LOOP4, LOOP6), 8) == (LOOP4, LOOP6)
    assert foremost((), 8) == ()


@given(st.lists(st.sampled_from((*ALL, "", "/", "/ip4", "/ip4/x/tcp/1", "nothing"))), st.integers(0, 12))
def test_no_address_is_made_up_or_repeated(addresses: list[str], most: int) -> None:
    found = foremost(addresses, most)
    assert set(found) <= set(addresses)
    assert len(found) == len(set(found)) == min(most, len(set(addresses)))
