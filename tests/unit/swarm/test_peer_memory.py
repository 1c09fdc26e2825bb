"""Remembered peers: who is kept, who makes room, and what a file or a stranger can do."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.protocol.envelope import seal
from p2prl.protocol.identity import Identity
from p2prl.protocol.kinds import Role
from p2prl.protocol.peer_messages import PeerRecord
from p2prl.sim.machines import identity_of
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.swarm.peers.peer_memory import (
    MAX_FILE_BYTES,
    MAX_RECORD_BYTES,
    MAX_REMEMBERED,
    REMEMBER_S,
    LinkedRecord,
    PeerMemory,
)
from p2prl.swarm.peers.subnets import UNKNOWN, Subnet, provider_of_subnet, subnet_of
from tests.unit.swarm.peer_links import ME, NOW, RUN, A, B, connections, hello, record

RULES = DialRules()
LEARNER = A
CROWD = [identity_of(f"crowd{i}") for i in range(MAX_REMEMBERED + 40)]


def memory() -> PeerMemory:
    return PeerMemory(RUN, ME.peer_id, LEARNER.peer_id)


def linked(
    who: Identity,
    address: str,
    *,
    role: Role = Role.VOLUNTEER,
    observed: str | None = None,
    chosen: bool = False,
    at: float = NOW,
) -> LinkedRecord:
    return LinkedRecord(
        peer=who.peer_id,
        raw=record(who, role=role, address=address, at=at),
        role=role,
        addresses=(address,),
        observed=subnet_of(address) if observed is None else Subnet(observed),
        is_chosen=chosen,
        since=at,
    )


def addresses(kept: PeerMemory) -> list[str]:
    return [address for _, address in kept.addresses(RULES)]


def ip(host: str) -> str:
    return f"/ip4/{host}/tcp/4001"


def test_a_linked_peer_is_found_again_after_a_restart() -> None:
    before = memory()
    before.note([linked(B, ip("8.8.4.4"))], NOW)
    assert before.changed
    after = memory()
    after.restore(before.to_bytes(), NOW + 86_400)
    assert after.addresses(RULES) == ((B.peer_id, f"{ip('8.8.4.4')}/p2p/{B.peer_id}"),)


@pytest.mark.parametrize(
    ("observed", "chosen", "kept"),
    [("8.8.4.0/24", False, True), ("9.9.9.0/24", False, False), ("9.9.9.0/24", True, True), (UNKNOWN, False, False)],
)
def test_an_address_counts_only_where_the_peer_was_seen(observed: str, chosen: bool, kept: bool) -> None:
    mine = memory()
    mine.note([linked(B, ip("8.8.4.4"), observed=observed, chosen=chosen)], NOW)
    assert len(mine) == kept


def test_the_learner_is_remembered_wherever_it_says_it_is() -> None:
    mine = memory()
    mine.note([linked(LEARNER, ip("8.8.4.4"), observed="9.9.9.0/24")], NOW)
    assert len(mine) == 1


def test_a_record_is_believed_of_its_signer_alone() -> None:
    mine = memory()
    forged = linked(B, ip("8.8.4.4"), chosen=True)
    other_run = seal(B, PeerRecord(int(Role.SEEDER), (ip("8.8.4.4"),), 0, 0), run=bytes(32), now=NOW)
    for raw in (record(CROWD[0], address=ip("8.8.4.4")), other_run, b"", forged.raw[:-1], bytes(MAX_RECORD_BYTES + 1)):
        mine.note([LinkedRecord(B.peer_id, raw, Role.SEEDER, (), forged.observed, True, NOW)], NOW)
    mine.note([linked(ME, ip("8.8.4.4"), chosen=True)], NOW)
    assert len(mine) == 0


def test_a_newer_record_replaces_an_older_one_and_not_the_reverse() -> None:
    mine = memory()
    mine.note([linked(B, ip("8.8.4.4"), at=NOW)], NOW)
    mine.note([linked(B, ip("8.8.4.5"), at=NOW + 1)], NOW + 1)
    mine.note([linked(B, ip("8.8.4.4"), at=NOW)], NOW + 2)
    assert addresses(mine) == [f"{ip('8.8.4.5')}/p2p/{B.peer_id}"]


def test_a_record_signed_in_times_to_come_does_not_outlast_the_clock_it_was_signed_by() -> None:
    mine = memory()
    mine.note([linked(B, ip("8.8.4.4"), at=NOW + 30 * 86_400)], NOW)
    mine.note([linked(B, ip("8.8.8.8"))], NOW + 60)
    assert addresses(mine) == [f"{ip('8.8.8.8')}/p2p/{B.peer_id}"]


def test_the_learner_comes_first_then_lasting_roles_then_the_latest_met() -> None:
    mine = memory()
    seeder, late, early = CROWD[:3]
    mine.note([linked(early, ip("8.8.1.1"))], NOW)
    mine.note([linked(seeder, ip("8.8.2.1"), role=Role.SEEDER), linked(LEARNER, ip("8.8.3.1"), role=Role.LEARNER)], NOW)
    mine.note([linked(late, ip("8.8.4.1"))], NOW + 60)
    assert [peer for peer, _ in mine.addresses(RULES)] == [p.peer_id for p in (LEARNER, seeder, late, early)]
    assert [peer for peer, _ in mine.addresses(RULES, lasting=True)] == [LEARNER.peer_id, seeder.peer_id]


def test_addresses_that_no_stranger_may_name_are_not_dialed() -> None:
    mine = memory()
    for who, host in zip(CROWD, ("127.0.0.1", "10.0.0.7", "169.254.1.1"), strict=False):
        mine.note([linked(who, ip(host), chosen=True)], NOW)
    assert len(mine) == 3
    assert addresses(mine) == []


def test_circuits_are_tried_after_direct_addresses() -> None:
    mine = memory()
    circuit = f"{ip('8.8.9.9')}/p2p/{A.peer_id}/p2p-circuit"
    body = PeerRecord(int(Role.SEEDER), (circuit, ip("8.8.4.4")), 0, 0)
    raw = seal(B, body, run=RUN, now=NOW)
    mine.note([LinkedRecord(B.peer_id, raw, Role.SEEDER, body.addresses, Subnet("8.8.4.0/24"), False, NOW)], NOW)
    assert addresses(mine) == [f"{ip('8.8.4.4')}/p2p/{B.peer_id}", f"{circuit}/p2p/{B.peer_id}"]


def test_a_peer_not_met_for_a_month_is_forgotten() -> None:
    mine = memory()
    mine.note([linked(B, ip("8.8.4.4"))], NOW)
    changes = []
    for later in (REMEMBER_S - 1, REMEMBER_S + 1):
        mine.changed = False
        mine.note([], NOW + later)
        changes.append((len(mine), mine.changed))
    assert changes == [(1, False), (0, True)]
    late = memory()
    late.note([linked(B, ip("8.8.4.4"))], NOW)
    after = memory()
    after.restore(late.to_bytes(), NOW + REMEMBER_S + 1)
    assert len(after) == 0


def test_a_flood_from_one_provider_leaves_all_others() -> None:
    mine = memory()
    honest = [linked(identity_of(f"honest{i}"), ip(f"{20 + i}.1.1.1")) for i in range(20)]
    mine.note([*honest, linked(LEARNER, ip("66.6.6.6"))], NOW)
    for turn in range(3):
        flood = [linked(who, ip(f"66.6.{i}.{turn + 1}"), role=Role.SEEDER) for i, who in enumerate(CROWD)]
        mine.note(flood, NOW + 100 * (1 + turn))
    kept = {peer for peer, _ in mine.addresses(RULES)}
    assert len(kept) == MAX_REMEMBERED
    assert {entry.peer for entry in honest} | {LEARNER.peer_id} <= kept


def test_one_subnet_of_a_provider_does_not_crowd_out_its_others() -> None:
    mine = memory()
    neighbors = [linked(identity_of(f"near{i}"), ip(f"66.6.{100 + i}.1")) for i in range(5)]
    mine.note(neighbors, NOW)
    mine.note([linked(who, ip(f"66.6.1.{i + 1}"), role=Role.SEEDER) for i, who in enumerate(CROWD)], NOW + 100)
    assert {entry.peer for entry in neighbors} <= {peer for peer, _ in mine.addresses(RULES)}


def test_alone_one_subnet_may_have_all_places() -> None:
    mine = memory()
    mine.note([linked(who, ip(f"66.6.1.{i + 1}")) for i, who in enumerate(CROWD)], NOW)
    assert len(mine) == MAX_REMEMBERED


@given(st.binary(max_size=400))
def test_any_file_is_read_or_ignored(data: bytes) -> None:
    mine = memory()
    mine.restore(data, NOW)
    assert len(mine) == 0


@given(st.integers(0, 2**32))
def test_a_damaged_file_gives_true_records_or_none(seed: int) -> None:
    rng = random.Random(seed)
    mine = memory()
    mine.note([linked(who, ip(f"{20 + i}.1.1.1")) for i, who in enumerate(CROWD[:3])], NOW)
    true = set(addresses(mine))
    data = bytearray(mine.to_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    after = memory()
    after.restore(bytes(data), NOW)
    assert set(addresses(after)) <= true


def test_a_full_memory_fits_its_file() -> None:
    mine = memory()
    longest = tuple(f"/dns4/{'a' * 200}{i}.example/tcp/40001" for i in range(8))
    for index, who in enumerate(CROWD):
        raw = seal(who, PeerRecord(int(Role.SEEDER), longest, 0, 0), run=RUN, now=NOW)
        place = Subnet(f"{20 + index}.1.1.0/24")
        mine.note([LinkedRecord(who.peer_id, raw, Role.SEEDER, longest, place, True, NOW)], NOW)
    data = mine.to_bytes()
    assert MAX_REMEMBERED * 1_000 < len(data) < MAX_FILE_BYTES
    after = memory()
    after.restore(data, NOW)
    assert len(after) == MAX_REMEMBERED


def test_connections_give_the_records_of_peers_that_said_hello() -> None:
    links = connections()
    links.discovery.on_records([record(B, address=ip("8.8.4.4"))], NOW)
    links.note_address(B.peer_id, ip("8.8.4.4"))
    links.connected(B.peer_id, NOW)
    links.connected(CROWD[0].peer_id, NOW)
    assert links.linked_records() == []
    links.on_hello(hello(role=Role.SEEDER), B.peer_id, NOW)
    links.on_hello(hello(role=Role.SEEDER), CROWD[0].peer_id, NOW)
    (found,) = links.linked_records()
    assert (found.peer, found.role, found.observed, found.is_chosen) == (B.peer_id, Role.SEEDER, "8.8.4.0/24", False)
    assert found.is_proven(ip("8.8.4.99"))
    assert not found.is_proven(ip("8.8.5.4"))


@pytest.mark.parametrize(
    ("subnet", "provider"),
    [("8.8.4.0/24", "8.8.0.0/16"), ("2001:db8:7::/48", "2001:db8::/32"), ("relay/x", "relay/x"), ("", "")],
)
def test_provider_of_a_subnet(subnet: str, provider: str) -> None:
    assert provider_of_subnet(Subnet(subnet)) == provider


def test_it_remembers_who_has_chosen_to_be_named_in_links() -> None:
    address = "/ip4/8.8.8.8/tcp/4001"
    kept = memory()
    for who, is_listed in ((A, False), (B, True)):
        raw = record(who, address=address, is_listed=is_listed)
        kept.note([LinkedRecord(who.peer_id, raw, Role.VOLUNTEER, (address,), subnet_of(address), True, NOW)], NOW)
    again = memory()
    again.restore(kept.to_bytes(), NOW)
    assert kept.listed == again.listed == {B.peer_id}
    assert set(addresses(again)) == {f"{address}/p2p/{who.peer_id}" for who in (A, B)}


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_word_taken_back_is_written_like_a_new_address(is_listed: bool) -> None:
    address, kept = "/ip4/8.8.8.8/tcp/4001", memory()
    for at, word in ((NOW, not is_listed), (NOW + 1, is_listed)):
        raw = record(B, address=address, is_listed=word, at=at)
        kept.changed = False
        kept.note([LinkedRecord(B.peer_id, raw, Role.VOLUNTEER, (address,), subnet_of(address), True, at)], at)
        assert kept.changed
    assert kept.listed == ({B.peer_id} if is_listed else frozenset())
