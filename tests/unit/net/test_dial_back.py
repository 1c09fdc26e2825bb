"""Answers to peers that ask whether they can be dialed: what is dialed, what is said, and when."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import RemoteProtocolError
from p2prl.net.transports import multiaddrs
from p2prl.net.transports.hivemind import dial_back
from p2prl.net.transports.hivemind.daemon import sized_message
from p2prl.net.transports.hivemind.dial_back import (
    MAX_MESSAGE_BYTES,
    DialBack,
    Status,
    addresses_to_try,
    answer_of,
    asked_addresses,
)
from p2prl.net.transports.tcp_trial import speaks_libp2p
from p2prl.sim.machines import identity_of
from p2prl.swarm.peers.dial_rules import DialRules
from tests.unit.net.autonat_oracle import parsed_answer, question

PEER = identity_of("asker").peer_id
SEEN = "/ip4/44.1.2.3/tcp/40001"
ANYWHERE = DialRules()


class HandClock:
    def __init__(self) -> None:
        self.time = 1_800_000_000.0

    def now(self) -> float:
        return self.time


@given(st.binary(max_size=60), st.lists(st.binary(max_size=60), max_size=30))
def test_a_question_is_read_as_protobuf_writes_it(peer: bytes, addresses: list[bytes]) -> None:
    asked = question(peer, *addresses)
    assert len(asked) <= MAX_MESSAGE_BYTES
    assert asked_addresses(asked) == tuple(addresses[:16])


@given(st.sampled_from(Status), st.binary(max_size=200))
def test_an_answer_is_what_protobuf_reads(status: Status, address: bytes) -> None:
    assert parsed_answer(answer_of(status, address)) == (status, address)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_question_or_refused(data: bytes) -> None:
    try:
        asked = asked_addresses(data)
    except RemoteProtocolError:
        return
    assert all(isinstance(address, bytes) for address in asked)


def test_answers_and_long_questions_are_no_questions() -> None:
    for data in (answer_of(Status.OK), question(bytes(MAX_MESSAGE_BYTES))):
        with pytest.raises(RemoteProtocolError):
            asked_addresses(data)


@pytest.mark.parametrize(
    ("seen", "named", "tried"),
    [
        (SEEN, [], [SEEN]),
        (SEEN, ["/ip4/192.168.1.10/tcp/4001"], [SEEN, "/ip4/44.1.2.3/tcp/4001"]),
        (SEEN, ["/ip4/9.9.9.9/tcp/4001", "/ip4/44.1.2.3/tcp/40001"], [SEEN, "/ip4/44.1.2.3/tcp/4001"]),
        (SEEN, ["/ip4/1.1.1.1/tcp/25", "/ip4/1.1.1.1/tcp/3306", "/ip4/1.1.1.1/udp/4001"], [SEEN]),
        (SEEN, ["/ip6/2001:db8::1/tcp/4001"], [SEEN]),
        (
            SEEN,
            [f"/ip4/1.1.1.1/tcp/{port}" for port in range(5000, 5010)],
            [SEEN, *(f"/ip4/44.1.2.3/tcp/{port}" for port in range(5000, 5003))],
        ),
        ("/ip4/192.168.1.4/tcp/4001", ["/ip4/44.1.2.3/tcp/4001"], []),
        ("/ip4/127.0.0.1/tcp/4001", [], []),
        (f"/ip4/44.9.9.9/tcp/4001/p2p/{PEER}/p2p-circuit", ["/ip4/44.1.2.3/tcp/4001"], []),
        ("", ["/ip4/44.1.2.3/tcp/4001"], []),
    ],
)
def test_only_the_address_that_the_question_came_from_is_dialed(seen: str, named: list[str], tried: list[str]) -> None:
    asked = [multiaddrs.to_bytes(address) for address in named]
    assert addresses_to_try([*asked, b"\xff\xff"], seen, PEER, ANYWHERE) == tuple(tried)


class Questions:
    """Questions to a service whose dials are recorded instead of made."""

    def __init__(self, listening: Callable[[str], bool], *, clock: HandClock | None = None) -> None:
        self.dialed: list[str] = []
        self._listening = listening
        self.service = DialBack(clock or HandClock(), trial=self._trial)

    async def _trial(self, address: str, timeout_s: float) -> bool:
        self.dialed.append(address)
        if not self._listening(address):
            await asyncio.Event().wait()  # as a router that drops packets
        return True

    async def ask(self, seen: str = SEEN, *named: str) -> tuple[int, bytes]:
        reader, writer = asyncio.StreamReader(), Writer()
        reader.feed_data(sized_message(question(b"id", *map(multiaddrs.to_bytes, named))))
        await self.service.answer(PEER, reader, writer, seen)  # type: ignore[arg-type]
        return parsed_answer(writer.sent[1:])


class Writer:
    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data

    async def drain(self) -> None:
        pass


def run(asking: Callable[[], Awaitable[None]]) -> None:
    async def both() -> None:
        await asking()

    asyncio.run(both())


def test_who_is_reached_hears_so_at_once_and_where() -> None:
    async def asking() -> None:
        questions = Questions(lambda address: address.endswith("/4001"))
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await questions.ask(SEEN, "/ip4/10.0.0.1/tcp/4001") == (
            Status.OK,
            multiaddrs.to_bytes("/ip4/44.1.2.3/tcp/4001"),
        )
        assert loop.time() - began < dial_back.ANSWER_S / 2

    run(asking)


@pytest.mark.parametrize("fails_at_once", [True, False])
def test_every_no_takes_the_same_time(monkeypatch: pytest.MonkeyPatch, fails_at_once: bool) -> None:
    monkeypatch.setattr(dial_back, "ANSWER_S", 0.2)

    async def asking() -> None:
        questions = Questions(lambda _: False)
        if fails_at_once:
            questions.service = DialBack(HandClock(), trial=_refused)
        loop = asyncio.get_running_loop()
        began = loop.time()
        assert await questions.ask() == (Status.DIAL_FAILED, b"")
        assert loop.time() - began >= 0.2

    run(asking)


async def _refused(address: str, timeout_s: float) -> bool:
    return False


def test_a_flood_of_one_subnet_is_refused_and_others_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_back, "ANSWER_S", 0.01)

    async def asking() -> None:
        clock = HandClock()
        questions = Questions(lambda _: False, clock=clock)
        answers = [(await questions.ask(f"/ip4/44.1.2.{number % 200}/tcp/4001"))[0] for number in range(40)]
        assert answers[:24] == [Status.DIAL_FAILED] * 24
        assert answers[24:] == [Status.REFUSED] * 16
        assert len(questions.dialed) == 24
        assert (await questions.ask("/ip4/44.7.7.7/tcp/4001"))[0] == Status.DIAL_FAILED
        clock.time += 10.0
        assert (await questions.ask())[0] == Status.DIAL_FAILED

    run(asking)


def test_no_more_are_answered_at_once_than_sockets_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial_back, "ANSWER_S", 0.2)
    monkeypatch.setattr(dial_back, "_MOST_AT_ONCE", 3)

    async def asking() -> None:
        questions = Questions(lambda _: False)
        answers = await asyncio.gather(*(questions.ask(f"/ip4/44.{n}.1.1/tcp/4001") for n in range(5)))
        assert sorted(status for status, _ in answers) == [Status.DIAL_FAILED] * 3 + [Status.REFUSED] * 2

    run(asking)


def test_a_stream_without_a_question_is_dropped() -> None:
    async def asking() -> None:
        for sent in (b"\xff" * 12, sized_message(b"\x07"), sized_message(bytes(MAX_MESSAGE_BYTES + 1))):
            reader, writer = asyncio.StreamReader(), Writer()
            reader.feed_data(sent)
            with contextlib.suppress(EOFError):
                await DialBack(HandClock(), trial=_refused).answer(PEER, reader, writer, SEEN)  # type: ignore[arg-type]
            assert writer.sent == b""

    run(asking)


@pytest.mark.parametrize(
    ("greets", "expected"),
    [(b"\x13/multistream/1.0.0\n", True), (b"HTTP/1.1 400 Bad Request\r\n", False), (b"", False)],
)
def test_a_libp2p_host_is_known_by_its_greeting(greets: bytes, expected: bool) -> None:
    async def asking() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(greets)
            writer.close()
            await reader.read()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        assert await speaks_libp2p(f"/ip4/127.0.0.1/tcp/{port}", 5.0) is expected
        server.close()
        await server.wait_closed()
        assert not await speaks_libp2p(f"/ip4/127.0.0.1/tcp/{port}", 5.0)

    run(asking)
