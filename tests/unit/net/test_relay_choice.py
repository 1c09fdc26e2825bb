"""Relay candidates are peers that answer, one address each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from p2prl.net.transports.tcp_trial import MOST_RELAYS, relays_among


def listening(count: int, check: Callable[[list[int], int], Awaitable[None]]) -> None:
    """Call `check` with the ports of listeners, and one port that is closed."""

    async def scenario() -> None:
        servers = [
            await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0) for _ in range(count + 1)
        ]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        servers[-1].close()
        try:
            await check(ports[:-1], ports[-1])
        finally:
            for server in servers:
                server.close()

    asyncio.run(scenario())


def at(port: int, peer: str, host: str = "/ip4/127.0.0.1") -> str:
    return f"{host}/tcp/{port}/p2p/{peer}"


def test_dead_peers_are_left_out_and_each_peer_has_one_address() -> None:
    async def check(ports: list[int], dead: int) -> None:
        addresses = [at(dead, "A"), at(ports[0], "B"), at(ports[1], "B"), at(ports[1], "C")]
        assert await relays_among(addresses) == (addresses[1], addresses[3])

    listening(2, check)


def test_no_more_than_a_few_are_taken() -> None:
    async def check(ports: list[int], _: int) -> None:
        addresses = [at(ports[0], f"P{number}") for number in range(MOST_RELAYS + 2)]
        assert await relays_among(addresses) == tuple(addresses[:MOST_RELAYS])

    listening(1, check)


def test_without_an_answer_the_first_is_taken() -> None:
    async def check(_: list[int], dead: int) -> None:
        assert await relays_among([at(dead, "A"), at(dead, "B")]) == (at(dead, "A"),)
        assert await relays_among([]) == ()

    listening(0, check)


def test_only_tcp_at_a_host_is_tried() -> None:
    async def check(ports: list[int], dead: int) -> None:
        circuit = f"/ip4/127.0.0.1/tcp/{ports[0]}/p2p/R/p2p-circuit/p2p/A"
        udp = f"/ip4/127.0.0.1/udp/{ports[0]}/p2p/A"
        name = at(ports[0], "B", "/dns4/localhost")
        assert await relays_among([circuit, udp, at(99_999, "C"), name]) == (name,)

    listening(1, check)
