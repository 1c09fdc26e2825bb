"""Search of the local network: with a network of the test's own, and by multicast DNS over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest

from p2prl.errors import MachineError
from p2prl.net.ports import LocalNetwork
from p2prl.net.process import nearby_search
from p2prl.net.process.nearby_search import NearbySearch
from p2prl.net.transports import local_network
from p2prl.net.transports.local_network import Answer, start_mdns
from p2prl.protocol.digests import Digest
from p2prl.sim.machines import identity_of
from p2prl.swarm.peers.dial_rules import DialRules
from p2prl.swarm.peers.nearby_peers import SERVICE, announcement, name_of

RUN = Digest(bytes(32))
ME, OTHER = identity_of("me").peer_id, identity_of("other").peer_id
LOCAL = DialRules(is_local=True)
AT_OTHER = f"/ip4/127.0.0.1/tcp/4002/p2p/{OTHER}"


class Wire:
    """A local network on which `answers` come as soon as somebody searches."""

    def __init__(self, *answers: tuple[Mapping[bytes, bytes | None], Sequence[str], int]) -> None:
        self.answers = answers
        self.announced: list[tuple[list[str], int]] = []
        self.closed = False

    def start(self, service: str, on_answer: Answer) -> LocalNetwork:
        assert service == "_p2prl._tcp.local."
        for answer in self.answers:
            on_answer(*answer)
        return self

    async def announce(self, name: str, properties: Mapping[bytes, bytes], hosts: Sequence[str], port: int) -> None:
        assert properties == announcement(RUN, ME)
        assert ME.endswith(name.split(".")[0])
        self.announced.append((list(hosts), port))

    async def close(self) -> None:
        self.closed = True


def test_who_answers_at_the_start_is_a_peer_to_join_through() -> None:
    wire = Wire((announcement(RUN, OTHER), ["127.0.0.1"], 4002))
    search = NearbySearch(RUN, ME, wire.start)
    assert asyncio.run(search.first(LOCAL)) == [(OTHER, AT_OTHER)]
    assert asyncio.run(search.first(DialRules())) == [], "loopback is nowhere for peers of the internet"


def test_silence_delays_the_start_by_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nearby_search, "_FIRST_S", 0.01)
    wire = Wire((announcement(Digest(bytes([1]) * 32), OTHER), ["127.0.0.1"], 4002))
    assert asyncio.run(NearbySearch(RUN, ME, wire.start).first(LOCAL)) == []


def test_addresses_are_announced_once_they_are_known_and_when_they_change() -> None:
    async def scenario(wire: Wire) -> None:
        search = NearbySearch(RUN, ME, wire.start)
        await search.announce((AT_OTHER,))  # nobody searches yet
        await search.first(LOCAL)
        for addresses in ((), (f"/ip4/192.168.1.7/tcp/1/p2p/{ME}",), (f"/ip4/192.168.1.7/tcp/1/p2p/{ME}",)):
            await search.announce(addresses)
        await search.announce((f"/ip4/192.168.1.8/tcp/1/p2p/{ME}",))
        await search.close()

    wire = Wire((announcement(RUN, OTHER), ["127.0.0.1"], 4002))
    asyncio.run(scenario(wire))
    assert wire.announced == [(["192.168.1.7"], 1), (["192.168.1.8"], 1)]
    assert wire.closed


def over_loopback(answered: asyncio.Event) -> Callable[[str, Answer], LocalNetwork]:
    """Starts of real searches, which set the event with every answer."""

    def start(service: str, on_answer: Answer) -> LocalNetwork:
        def take(properties: Mapping[bytes, bytes | None], hosts: Sequence[str], port: int) -> None:
            on_answer(properties, hosts, port)
            answered.set()

        return start_mdns(service, take, ["127.0.0.1"])

    return start


def test_two_peers_find_each_other_by_multicast_dns() -> None:
    """Both announce themselves over loopback; each finds the other, also after a change."""
    pytest.importorskip("zeroconf")

    answered = asyncio.Event()
    start = over_loopback(answered)

    async def until_found(search: NearbySearch, address: str) -> None:
        async with asyncio.timeout(20):
            while address not in [where for _, where in search.found(LOCAL)]:
                answered.clear()
                await answered.wait()

    async def scenario() -> None:
        first, second = (NearbySearch(RUN, peer, start) for peer in (ME, OTHER))
        try:
            await asyncio.gather(first.first(LOCAL), second.first(LOCAL))
            await asyncio.gather(first.announce((f"/ip4/127.0.0.1/tcp/4001/p2p/{ME}",)), second.announce((AT_OTHER,)))
            await until_found(first, AT_OTHER)
            await until_found(second, f"/ip4/127.0.0.1/tcp/4001/p2p/{ME}")
            await second.announce((f"/ip4/127.0.0.1/tcp/4003/p2p/{OTHER}",))
            await until_found(first, f"/ip4/127.0.0.1/tcp/4003/p2p/{OTHER}")
        finally:
            await asyncio.gather(first.close(), second.close())

    asyncio.run(scenario())


def test_a_neighbor_that_has_taken_its_name_does_not_stop_a_peer() -> None:
    pytest.importorskip("zeroconf")
    answered = asyncio.Event()
    start = over_loopback(answered)

    async def scenario() -> None:
        squatter, search = start(SERVICE, lambda *_: None), NearbySearch(RUN, ME, start)
        try:
            await squatter.announce(name_of(ME), {b"run": b"another"}, ["127.0.0.1"], 9)
            await search.first(LOCAL)
            await answered.wait()
            await search.announce((f"/ip4/127.0.0.1/tcp/4001/p2p/{ME}",))
            assert search.found(LOCAL) == []
        finally:
            await squatter.close()
            await search.close()

    asyncio.run(scenario())


def test_without_the_library_or_a_network_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, remedy in ((ImportError(), "'.[lan]'"), (OSError("no network"), "--peers")):

        def refuse(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(local_network, "MulticastDns", refuse)
        with pytest.raises(MachineError) as raised:
            start_mdns("_p2prl._tcp.local.", lambda *_: None)
        assert remedy in (raised.value.remedy or "")
