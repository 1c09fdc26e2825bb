"""The choice of a peer to be named in join links: what its record says, and of which of its processes it holds."""

from __future__ import annotations

import pytest

from p2prl.protocol import limits
from p2prl.protocol.envelope import body_of, open_envelope, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import LISTED, PeerRecord, standby_note
from p2prl.swarm.events import LookUp, Register
from p2prl.swarm.peers.connections import Connections
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.swarm.peers.meetings import is_direct_public
from p2prl.swarm.peers.subnets import UNKNOWN, subnet_of
from tests.unit.swarm.peer_links import NOW, RUN, A, B, connections, hello, record


def own_record(links: Connections) -> PeerRecord:
    links.commands.clear()
    links.refresh(NOW)
    (register,) = (command for command in links.commands if isinstance(command, Register))
    return body_of(open_envelope(register.record, now=NOW), PeerRecord)


@pytest.mark.parametrize("count", [1, limits.MAX_ADDRESSES])
def test_a_record_says_that_links_may_name_the_peer_only_if_its_owner_chose_so(count: int) -> None:
    addresses = tuple(f"/ip4/8.8.8.{number}/tcp/4001" for number in range(count))
    for is_listed in (False, True):
        links = connections(is_listed=is_listed)
        assert own_record(links).addresses == (), "nobody can dial it yet"
        links.discovery.set_addresses(addresses, NOW)
        made = own_record(links)
        made.check()
        assert made.is_listed is is_listed
        assert made.dialable == addresses[: limits.MAX_ADDRESSES - is_listed]


def test_the_word_of_a_record_is_read_and_taken_back_by_the_next() -> None:
    links = connections()
    for number, is_listed in enumerate((False, True, False)):
        links.discovery.on_records([record(B, at=NOW + number, is_listed=is_listed)], NOW + number)
        assert links.discovery.addresses_of(B.peer_id) == ("/ip4/1.2.3.4/tcp/4001",)
        assert links.discovery.is_listed(B.peer_id, 0) is is_listed
    assert links.discovery.is_listed(A.peer_id, 0) is False, "no record of it"


@pytest.mark.parametrize(("count", "is_listed"), [(0, False), (1, True), (limits.MAX_ADDRESSES, True)])
def test_a_record_says_at_what_price_its_owner_agrees_to_stand_by(count: int, is_listed: bool) -> None:
    addresses = tuple(f"/ip4/8.8.8.{number}/tcp/4001" for number in range(count))
    links = connections(is_listed=is_listed)
    links.discovery.set_addresses(addresses, NOW)
    assert own_record(links).price is None
    links._local.price = 0.25
    made = own_record(links)
    made.check()
    assert made.price == 0.25
    assert made.is_listed is is_listed
    assert made.dialable == addresses[: limits.MAX_ADDRESSES - 1 - is_listed]


@pytest.mark.parametrize("note", ["/p2prl/standby/", "/p2prl/standby/nan", "/p2prl/standby/-1", "/p2prl/standby/1e7"])
def test_a_price_that_is_none_is_no_offer_and_no_address(note: str) -> None:
    odd = PeerRecord(int(Role.VOLUNTEER), ("/ip4/1.2.3.4/tcp/4001", note), -1, 0)
    odd.check()
    assert odd.price is None
    assert odd.dialable == ("/ip4/1.2.3.4/tcp/4001",)


def test_offers_are_those_of_volunteers_and_are_taken_back() -> None:
    links = connections(Role.LEARNER)
    standing_by = ("/ip4/1.2.3.4/tcp/4001", standby_note(3.0))

    def offers_after(role: Role, addresses: tuple[str, ...], at: float) -> tuple[tuple[bytes, float], ...]:
        body = PeerRecord(int(role), addresses, -1, 0)
        links.discovery.on_records([seal(B, body, run=RUN, now=at)], at)
        return links.discovery.offers

    assert offers_after(Role.VALIDATOR, standing_by, NOW) == ()
    assert offers_after(Role.VOLUNTEER, standing_by, NOW + 1) == ((B.public_key, 3.0),)
    assert offers_after(Role.VOLUNTEER, standing_by[:1], NOW + 2) == ()


def links_with_a_listed_peer(**config: float) -> Connections:
    links = connections(Role.BOARD, **config)  # type: ignore[arg-type]
    links.connected(B.peer_id, NOW)
    links.on_hello(hello(role=Role.VOLUNTEER, clock=NOW), B.peer_id, NOW)
    links.discovery.on_records([record(B, at=NOW, is_listed=True)], NOW)
    assert listing(links) is True
    return links


def listing(links: Connections) -> bool | None:
    (linked,) = links.linked_records()
    return linked.is_listed


def restart(links: Connections, now: float, *, is_noticed: bool) -> None:
    """The peer's process is replaced; its old connection ends before the new one is there, or is not seen to end."""
    if is_noticed:
        links.lost(B.peer_id, now)
    links.connected(B.peer_id, now)
    links.on_hello(hello(role=Role.VOLUNTEER, clock=now), B.peer_id, now)


@pytest.mark.parametrize("is_noticed", [True, False])
@pytest.mark.parametrize("is_listed", [True, False])
def test_the_word_of_a_process_that_has_ended_is_not_that_of_the_next(is_noticed: bool, is_listed: bool) -> None:
    """A volunteer that started again without `--public` was named for ten minutes, by its last record before."""
    links = links_with_a_listed_peer()
    restart(links, NOW + 60, is_noticed=is_noticed)
    assert listing(links) is None
    links.discovery.on_records([record(B, at=NOW + 59, is_listed=True)], NOW + 61)
    assert listing(links) is None, "the last record of the process that has ended"
    links.discovery.on_records([record(B, at=NOW + 60, is_listed=is_listed)], NOW + 61)
    assert listing(links) is is_listed


def test_the_clock_of_the_peer_dates_its_word() -> None:
    """It may be a quarter of a minute behind ours."""
    links = connections(Role.BOARD)
    links.connected(B.peer_id, NOW)
    links.on_hello(hello(role=Role.VOLUNTEER, clock=NOW - 15), B.peer_id, NOW)
    links.discovery.on_records([record(B, at=NOW - 16, is_listed=True)], NOW)
    assert listing(links) is None
    links.discovery.on_records([record(B, at=NOW - 15, is_listed=True)], NOW)
    assert listing(links) is True


def test_hellos_of_the_same_process_leave_its_word_as_it_is() -> None:
    links = links_with_a_listed_peer()
    for second in (15, 30):
        again = hello(role=Role.VOLUNTEER, clock=NOW + second, echo_ms=int(NOW * 1000))
        links.on_hello(again, B.peer_id, NOW + second)
        assert listing(links) is True


@pytest.mark.parametrize(("role", "is_due"), [(Role.BOARD, True), (Role.LEARNER, True), (Role.VOLUNTEER, False)])
def test_who_shows_a_link_looks_for_the_word_of_a_peer_that_started_again(role: Role, is_due: bool) -> None:
    links = connections(role, max_neighbors=1, own_links=0)
    links.connected(B.peer_id, NOW)
    links.on_hello(hello(role=Role.VOLUNTEER, clock=NOW), B.peer_id, NOW)
    if role is not Role.LEARNER:
        links.connected(A.peer_id, NOW)
        links.on_hello(hello(), A.peer_id, NOW)
    links.discovery.on_records([record(B, at=NOW, is_listed=True)], NOW)

    def looks_up(now: float) -> bool:
        links.commands.clear()
        links.refresh(now)
        return any(isinstance(command, LookUp) for command in links.commands)

    assert looks_up(NOW + 600)
    assert not looks_up(NOW + 630)
    restart(links, NOW + 640, is_noticed=True)
    assert looks_up(NOW + 660) is is_due
    links.discovery.on_records([record(B, at=NOW + 650, is_listed=False)], NOW + 660)
    assert not looks_up(NOW + 690)


def test_who_does_not_know_the_word_dials_the_addresses_beside_it() -> None:
    """Earlier releases take it for one more address."""
    address = "/ip4/1.2.3.4/tcp/4001"
    assert DialRules().chosen((address, LISTED), B.peer_id) == (address,)
    assert not is_direct_public(LISTED)
    assert subnet_of(LISTED) == UNKNOWN
