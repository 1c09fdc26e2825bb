"""Starts that reach no peer: the error names what was seen, and a trial of an address sees what is there."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest

from p2prl.net.process.join_diagnosis import no_manifest, unreachable
from p2prl.net.transports.tcp_trial import _GREETING, Outcome, loses_long_packets, outcome_of
from p2prl.protocol.identity import Identity

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

PEER = Identity(bytes(16)).peer_id
IP4, IP6 = f"/ip4/8.8.4.4/tcp/4001/p2p/{PEER}", f"/ip6/2001:4860::1/tcp/443/p2p/{PEER}"


@pytest.mark.parametrize(
    ("outcomes", "seen", "remedy"),
    [
        ({IP4: Outcome.NO_ROUTE}, "no way to IPv4 addresses", "an IPv6 address"),
        ({IP6: Outcome.NO_ROUTE}, "no way to IPv6 addresses", "an IPv4 address"),
        ({IP4: Outcome.NO_ROUTE, IP6: Outcome.NO_ROUTE}, "no way to any address of the link", "to a network"),
        ({IP4: Outcome.NO_ROUTE, IP6: Outcome.NO_ANSWER}, "nothing answers at 2001:4860::1 port 443", "TCP 443"),
        ({IP4: Outcome.NO_ANSWER}, "nothing answers at 8.8.4.4 port 4001", "a peer at port 443"),
        ({IP4: Outcome.REFUSED}, "no program listens at 8.8.4.4 port 4001", "fresh join link"),
        ({IP4: Outcome.GREETED, IP6: Outcome.REFUSED}, "a peer greets at 8.8.4.4 port 4001", "mtu 1280"),
        ({IP4: Outcome.SHORT, IP6: Outcome.GREETED}, "packets of full size to it are lost", "mtu 1280"),
        ({IP4: Outcome.ACCEPTED}, "does not greet as a peer does", "proxy"),
        ({IP4: Outcome.UNKNOWN_NAME}, "is not known to this network", "DNS"),
        ({f"{IP4}/p2p-circuit/p2p/{PEER}": Outcome.UNTRIED}, "p2p-circuit", "firewall"),
    ],
)
def test_a_start_without_an_answer_says_what_its_dials_saw(
    outcomes: dict[str, Outcome], seen: str, remedy: str
) -> None:
    error = unreachable(outcomes)
    assert seen in str(error)
    assert remedy in error.remedy


def test_a_minute_without_a_manifest_says_who_answered() -> None:
    assert "may be gone" in no_manifest(links=0, other_runs=0, knows_run=True).remedy
    for other_runs, seen in ((1, "but for another run than the link's"), (0, "and knows nobody of the link's run")):
        other = no_manifest(links=0, other_runs=other_runs, knows_run=False)
        assert str(other) == f"a peer of the link answers, {seen}"
        assert "Copy the whole link again" in other.remedy
    linked = no_manifest(links=2, other_runs=1, knows_run=True)
    assert "2 peers of this run answered, and none sent" in str(linked)
    assert "mtu" in linked.remedy


async def greets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """As a libp2p host: the greeting, then a refusal of each unknown protocol that has arrived whole."""
    writer.write(_GREETING)
    assert await reader.readexactly(len(_GREETING)) == _GREETING
    while size := (await reader.read(1) or b"\0")[0]:
        assert (await reader.readexactly(size)).endswith(b"\n")
        writer.write(b"\x03na\n")


async def gets_short_packets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(_GREETING)
    while await reader.read():
        pass  # what comes in long packets never arrives, so nothing is answered


async def is_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    """An address where `serve` answers one connection."""
    served = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await serve(reader, writer)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        served.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"/ip4/127.0.0.1/tcp/{server.sockets[0].getsockname()[1]}/p2p/{PEER}"
        await served.wait()


@pytest.mark.parametrize(
    ("serve", "expected"),
    [(greets, Outcome.GREETED), (gets_short_packets, Outcome.SHORT), (is_silent, Outcome.ACCEPTED)],
)
def test_a_trial_sees_whether_a_peer_greets(serve: Serve, expected: Outcome) -> None:
    async def tried() -> Outcome:
        async with listening(serve) as address:
            return await outcome_of(address, 1.0)

    assert asyncio.run(tried()) is expected


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        ((gets_short_packets,), True),
        ((gets_short_packets, is_silent), True),
        ((gets_short_packets, greets), False),
        ((greets,), False),
        ((is_silent,), False),
    ],
)
def test_a_line_loses_long_packets_if_no_host_gets_them(served: tuple[Serve, ...], expected: bool) -> None:
    async def measured() -> bool:
        async with AsyncExitStack() as opened:
            return await loses_long_packets([await opened.enter_async_context(listening(serve)) for serve in served])

    assert asyncio.run(measured()) is expected


def test_a_trial_of_places_without_a_program() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        closed = f"/ip4/127.0.0.1/tcp/{holder.getsockname()[1]}"
        assert asyncio.run(outcome_of(closed)) is Outcome.REFUSED
    assert asyncio.run(outcome_of("/dns4/no..host/tcp/1")) is Outcome.UNKNOWN_NAME
    assert asyncio.run(outcome_of("/ip4/127.0.0.1/udp/1/quic-v1")) is Outcome.UNTRIED
