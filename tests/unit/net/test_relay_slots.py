"""Slots at relays: what is asked, when, and which circuits are named."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import RemoteProtocolError, TransportError
from p2prl.net.transports.hivemind.relay_slots import (
    FIRST_S,
    HOP_PROTOCOL,
    RENEW_S,
    RelaySlots,
    is_granted,
    reserve_message,
)
from p2prl.protocol.identity import PeerId
from p2prl.sim.machines import identity_of

ME, RELAY, OTHER = (identity_of(name).peer_id for name in ("me", "relay", "other"))
HOME = f"/ip4/192.168.1.10/tcp/4001/p2p/{ME}"
PUBLIC = f"/ip4/44.131.7.1/tcp/4001/p2p/{ME}"
CANDIDATE = f"/ip4/44.132.7.1/tcp/443/p2p/{RELAY}"
GRANTED, FULL = b"\x08\x02\x28\x64", b"\x08\x02\x28\xc9\x01"
"""HopMessage of type STATUS, with status OK (100) and RESOURCE_LIMIT_EXCEEDED (201)."""


def circuit(relay: PeerId, host: str = "44.132.7.1") -> str:
    return f"/ip4/{host}/tcp/443/p2p/{relay}/p2p-circuit/p2p/{ME}"


def circuit_at(number: int, relay: PeerId) -> str:
    return circuit(relay, f"44.132.8.{number}")


class Relays:
    """Relays that answer as a test says; without an answer nobody is there."""

    def __init__(self) -> None:
        self.answers: dict[PeerId, bytes] = {}
        self.asked: list[PeerId] = []

    async def open_stream(self, peer: PeerId, protocol: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert protocol == HOP_PROTOCOL
        self.asked.append(peer)
        if peer not in self.answers:
            raise TransportError("not there")
        ours, theirs = socket.socketpair()
        answer = self.answers[peer]
        theirs.sendall(bytes((len(answer),)) + answer)
        reader, writer = await asyncio.open_connection(sock=ours)
        expected = bytes((len(reserve_message()),)) + reserve_message()
        asyncio.get_running_loop().call_soon(self._check, theirs, expected)
        return reader, writer

    @staticmethod
    def _check(theirs: socket.socket, expected: bytes) -> None:
        with theirs:
            assert theirs.recv(100) == expected


def story(steps: Callable[[RelaySlots, Relays], object], *candidates: str) -> None:
    relays = Relays()
    slots = RelaySlots(relays.open_stream, own=ME, candidates=candidates)
    asyncio.run(steps(slots, relays))  # type: ignore[arg-type]


def test_the_request_and_its_answers_are_those_of_the_specification() -> None:
    assert reserve_message() == b"\x08\x00"
    assert is_granted(GRANTED)
    assert is_granted(GRANTED + b"\x1a\x02\x08\x05"), "with a reservation"
    assert not is_granted(FULL)
    for wrong in (b"", b"\x08\x00\x28\x64", b"\x08\x02", b"\x28\x64"):
        with pytest.raises(RemoteProtocolError):
            is_granted(wrong)


@given(st.binary(max_size=40))
def test_any_answer_is_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        is_granted(data)


def test_a_circuit_that_the_daemon_has_lost_is_reserved_anew_where_it_was() -> None:
    async def steps(slots: RelaySlots, relays: Relays) -> None:
        assert await slots.completed((HOME,), 0.0) == (HOME,)
        assert relays.asked == [], "the daemon has named none yet"
        both = (HOME, circuit(RELAY), circuit(RELAY, "44.132.7.2"))
        assert await slots.completed(both, 1.0) == both
        assert relays.asked == []
        assert await slots.completed((HOME,), 2.0) == (HOME,), "the relay is away"
        relays.answers = {RELAY: FULL}
        assert await slots.completed((HOME,), 3.0) == (HOME,)
        relays.answers = {RELAY: GRANTED}
        assert await slots.completed((HOME,), 4.0) == both
        assert relays.asked == [RELAY] * 3
        assert await slots.completed((HOME,), 4.0 + RENEW_S - 0.1) == both
        assert relays.asked == [RELAY] * 3
        relays.answers = {}
        assert await slots.completed((HOME,), 4.0 + RENEW_S) == (HOME,), "it has gone again"

    story(steps)


def test_a_relay_that_is_back_is_asked_at_once() -> None:
    async def steps(slots: RelaySlots, relays: Relays) -> None:
        assert not slots.reached(CANDIDATE, RELAY), "no slot was there"
        await slots.completed((HOME, circuit(RELAY)), 0.0)
        relays.answers = {RELAY: GRANTED}
        assert await slots.completed((HOME,), 1.0) == (HOME, circuit(RELAY))
        assert not slots.reached(f"/ip4/44.132.7.9/tcp/4001/p2p/{OTHER}", OTHER)
        await slots.completed((HOME,), 2.0)
        assert relays.asked == [RELAY]
        assert slots.reached(CANDIDATE, RELAY)
        await slots.completed((HOME,), 3.0)
        assert relays.asked == [RELAY] * 2

    story(steps)


def test_nothing_is_held_beside_a_circuit_of_the_daemon_or_a_public_address() -> None:
    async def steps(slots: RelaySlots, relays: Relays) -> None:
        relays.answers = {RELAY: GRANTED}
        await slots.completed((HOME, circuit(RELAY)), 0.0)
        assert await slots.completed((HOME, circuit(OTHER)), 1.0) == (HOME, circuit(OTHER))
        assert await slots.completed((HOME, PUBLIC), 2.0) == (HOME, PUBLIC)
        assert relays.asked == []
        assert await slots.completed((HOME,), 3.0) == (HOME, circuit(RELAY)), "the one that grants"
        assert sorted(relays.asked) == sorted((RELAY, OTHER))

    story(steps)


def test_a_home_that_never_had_a_circuit_reserves_one_at_a_candidate() -> None:
    """The daemon asks a candidate that was busy when the home started no more for an hour."""

    async def steps(slots: RelaySlots, relays: Relays) -> None:
        relays.answers = {RELAY: FULL}
        await slots.completed((HOME,), 5.0)
        assert await slots.completed((HOME,), 5.0 + FIRST_S - 0.1) == (HOME,)
        assert relays.asked == [], "the daemon may name one yet"
        assert await slots.completed((HOME,), 5.0 + FIRST_S) == (HOME,)
        assert relays.asked == [RELAY]
        relays.answers = {RELAY: GRANTED}
        assert await slots.completed((HOME,), 5.0 + FIRST_S + RENEW_S - 0.1) == (HOME,)
        assert relays.asked == [RELAY], "it may be no relay: it is not asked at every look"
        assert await slots.completed((HOME,), 5.0 + FIRST_S + RENEW_S) == (HOME, circuit(RELAY))
        relays.answers = {}
        assert await slots.completed((HOME,), 5.0 + FIRST_S + 2 * RENEW_S) == (HOME,)
        relays.answers = {RELAY: GRANTED}
        assert await slots.completed((HOME,), 6.0 + FIRST_S + 2 * RENEW_S) == (HOME, circuit(RELAY)), "it is back"

    story(steps, CANDIDATE)


def test_candidates_are_not_asked_beside_a_circuit_or_a_public_address_nor_in_a_private_network() -> None:
    async def beside(slots: RelaySlots, relays: Relays) -> None:
        relays.answers = {RELAY: GRANTED, OTHER: GRANTED}
        for now in (0.0, FIRST_S, 2 * FIRST_S):
            assert await slots.completed((HOME, PUBLIC), now) == (HOME, PUBLIC)
        await slots.completed((HOME, circuit(OTHER)), 3 * FIRST_S)
        assert await slots.completed((HOME,), 5 * FIRST_S) == (HOME, circuit(OTHER))
        assert relays.asked == [OTHER], "where it had one"

    async def private(slots: RelaySlots, relays: Relays) -> None:
        relays.answers = {RELAY: GRANTED}
        for now in (0.0, FIRST_S, 2 * FIRST_S):
            assert await slots.completed((HOME,), now) == (HOME,)
        assert relays.asked == []

    story(beside, CANDIDATE)
    story(private, f"/ip4/127.0.0.1/tcp/4001/p2p/{RELAY}", f"/ip4/192.168.1.4/tcp/4001/p2p/{RELAY}")


def test_a_public_peer_that_was_dialed_is_a_candidate() -> None:
    async def steps(slots: RelaySlots, relays: Relays) -> None:
        relays.answers = {RELAY: GRANTED}
        await slots.completed((HOME,), 0.0)
        assert not slots.reached(f"/ip4/192.168.1.4/tcp/4001/p2p/{OTHER}", OTHER)
        assert not slots.reached(circuit_at(7, RELAY).partition("/p2p-circuit")[0], RELAY)
        assert not slots.reached(CANDIDATE, RELAY), "it has moved"
        assert await slots.completed((HOME,), FIRST_S) == (HOME, circuit(RELAY))
        assert relays.asked == [RELAY]

    story(steps)


def test_the_newest_candidates_are_asked() -> None:
    async def steps(slots: RelaySlots, relays: Relays) -> None:
        many = [identity_of(f"peer {number}").peer_id for number in range(20)]
        for number, peer in enumerate(many):
            slots.reached(circuit_at(number, peer).partition("/p2p-circuit")[0], peer)
        await slots.completed((HOME,), 0.0)
        await slots.completed((HOME,), FIRST_S)
        assert relays.asked == many[-8:]
        relays.answers = dict.fromkeys(many, GRANTED)
        named = await slots.completed((HOME,), FIRST_S + RENEW_S)
        assert relays.asked == many[-8:] + many[-8:-5], "three slots are enough"
        assert named == (HOME, *(circuit_at(number, many[number]) for number in (12, 13, 14)))
        assert await slots.completed((HOME,), FIRST_S + 2 * RENEW_S) == named
        assert relays.asked == many[-8:] + 2 * many[-8:-5]

    story(steps)
