"""The link keeper reads the owner's list again when nobody leads to the learner, and dials who is in it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from p2prl.errors import TransportError, UnreachableError
from p2prl.net.process import link_keeper
from p2prl.net.process.link_keeper import LinkKeeper
from p2prl.net.process.nearby_search import NearbySearch
from p2prl.net.process.network_config import NetworkConfig, ReachOptions
from p2prl.net.process.node_driver import NodeDriver
from p2prl.protocol.digests import Digest
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.sim.machines import identity_of
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.peers.dial_rules import DialRules, rules_for
from p2prl.swarm.peers.peer_memory import LinkedRecord
from p2prl.swarm.peers.subnets import subnet_of

LEARNER = identity_of("learner").peer_id
OLD, NEW = (f"/ip4/8.8.4.{number}/tcp/4001/p2p/{LEARNER}" for number in (4, 5))
PRIVATE = f"/ip4/10.0.0.1/tcp/4001/p2p/{LEARNER}"
RUN = Digest(bytes(32))
URL = "https://example.org/peers.txt"


class Clock:
    """A minute passes with every look at it."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        self.at += 61.0
        return self.at


class Transport:
    """Nobody listens but at `NEW`."""

    addresses: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.dialed: list[str] = []
        self.reached = asyncio.Event()

    async def connect(self, address: str) -> PeerId:
        self.dialed.append(address)
        if address != NEW:
            raise TransportError(f"{address} is dead")
        self.reached.set()
        return LEARNER


def keeper(
    node: Any,
    peers_list: str,
    nearby: NearbySearch | None = None,
    *,
    role: Role = Role.VOLUNTEER,
    bootstrap: tuple[str, ...] = (OLD,),
) -> LinkKeeper:
    config = NetworkConfig(
        key_file=Path("key"),
        run=RUN,
        node=NodeConfig(role=role),
        blob_dir=Path("blobs"),
        bootstrap=bootstrap,
        reach=ReachOptions(peers_list=peers_list),
    )
    return LinkKeeper(cast(Node, node), Clock(), random.Random(1), identity_of("home").peer_id, config, nearby)


def lonely_node() -> Any:
    return SimpleNamespace(
        connections=SimpleNamespace(learner=LEARNER, linked_records=list),
        dial_rules=DialRules(),
        roles=lambda: (),
        link_class=lambda *_: None,
        connected=lambda *_: True,
    )


async def _dials(peers_list: str, monkeypatch: pytest.MonkeyPatch, answers: list[bytes]) -> list[str]:
    """Addresses dialed until the learner is reached, or until every answer of the list's server was used."""
    asked = asyncio.Event()

    async def download(url: str) -> bytes:
        assert url == URL
        if not answers:
            asked.set()
            raise UnreachableError("no server")
        return answers.pop(0)

    monkeypatch.setattr(link_keeper, "_TURN_S", 0.0)
    monkeypatch.setattr(link_keeper, "download_apart", download)
    transport = Transport()
    driver = cast(NodeDriver, SimpleNamespace(wake=lambda: None))
    task = asyncio.create_task(keeper(lonely_node(), peers_list).run(cast(Any, transport), driver))
    waits = [asyncio.create_task(event.wait()) for event in (transport.reached, asked)]
    await asyncio.wait([task, *waits], return_when=asyncio.FIRST_COMPLETED)
    for each in (task, *waits):
        each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await each
    return transport.dialed


def test_a_moved_learner_is_found_through_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    dialed = asyncio.run(_dials(URL, monkeypatch, [f"{PRIVATE}\n{NEW}\n".encode()]))
    assert OLD in dialed
    assert dialed[-1] == NEW
    assert PRIVATE not in dialed


def test_a_list_that_is_none_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(asyncio.run(_dials(URL, monkeypatch, [b"<html>"]))) == {OLD}


def test_a_learner_reads_the_file_of_its_list_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_keeper, "_TURN_S", 0.0)
    path = tmp_path / "peers.txt"
    path.write_text(f"{NEW}\n")

    async def story() -> list[str]:
        node, transport = lonely_node(), Transport()
        node.roles = lambda: (("volunteer", 9),)
        driver = cast(NodeDriver, SimpleNamespace(wake=lambda: None))
        task = asyncio.create_task(
            keeper(node, str(path), role=Role.LEARNER, bootstrap=()).run(cast(Any, transport), driver)
        )
        await transport.reached.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return transport.dialed

    assert set(asyncio.run(story())) == {NEW}


class CircuitTransport(Transport):
    """The learner is linked through a circuit, and can be dialed at `NEW`."""

    def __init__(self) -> None:
        super().__init__()
        self.replaced: list[str] = []

    async def meet(self, address: str, *, dials: bool) -> None:
        raise AssertionError(address, dials)

    async def replace_circuit(self, address: str) -> PeerId:
        self.replaced.append(address)
        self.reached.set()
        return LEARNER


async def _replaced(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[PeerId]]:
    """Addresses at which the learner was dialed past its circuit, and the peers that the node heard are connected."""
    monkeypatch.setattr(link_keeper, "_TURN_S", 0.0)
    connected: list[PeerId] = []
    node = lonely_node()
    addresses = (PRIVATE, NEW, f"{OLD}/p2p-circuit")
    record = LinkedRecord(LEARNER, b"", Role.LEARNER, addresses, subnet_of(NEW), is_chosen=True, since=0.0)
    node.connections.linked_records = lambda: [record]
    node.connections.is_relayed = lambda peer: peer == LEARNER and not connected
    node.connections.discovery = SimpleNamespace(may_dial=lambda *_: True)
    node.connected = lambda peer, now, *, chosen: connected.append(peer)
    node.roles = lambda: (("learner", 1),)
    transport, woken = CircuitTransport(), asyncio.Event()
    driver = cast(NodeDriver, SimpleNamespace(wake=woken.set))
    task = asyncio.create_task(keeper(node, "").run(cast(Any, transport), driver))
    waiting = asyncio.create_task(woken.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    for each in (task, waiting):
        each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await each
    return transport.replaced, connected


def test_a_learner_behind_a_circuit_is_dialed_at_its_public_address(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(_replaced(monkeypatch)) == ([NEW], [LEARNER])


class Room(NearbySearch):
    """A local network on which the learner has answered at `NEW`."""

    def __init__(self) -> None:
        super().__init__(RUN, identity_of("home").peer_id)
        self.announced: list[tuple[str, ...]] = []
        self.is_closed = False

    async def first(self, rules: DialRules) -> list[tuple[PeerId, str]]:
        return self.found(rules)

    def found(self, rules: DialRules) -> list[tuple[PeerId, str]]:
        assert not rules.networks
        return [(LEARNER, NEW)]

    async def announce(self, addresses: Sequence[str]) -> None:
        self.announced.append(tuple(addresses))

    async def close(self) -> None:
        self.is_closed = True


def test_who_answers_on_the_local_network_is_a_peer_to_join_through() -> None:
    assert asyncio.run(keeper(lonely_node(), "", Room()).bootstrap()) == (OLD, NEW)
    assert asyncio.run(keeper(lonely_node(), "").bootstrap()) == (OLD,)


async def _dials_nearby(room: Room, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(link_keeper, "_TURN_S", 0.0)
    transport = Transport()
    driver = cast(NodeDriver, SimpleNamespace(wake=lambda: None))
    task = asyncio.create_task(keeper(lonely_node(), "", room).run(cast(Any, transport), driver))
    await asyncio.wait([task, reached := asyncio.create_task(transport.reached.wait())], return_when="FIRST_COMPLETED")
    for each in (task, reached):
        each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await each
    return transport.dialed


def test_who_answers_later_is_dialed_while_the_learner_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    room = Room()
    assert NEW in asyncio.run(_dials_nearby(room, monkeypatch))
    assert room.announced
    assert room.is_closed


SEEDER = identity_of("seeder").peer_id
HOME, HOME_OF_LEARNER = "/ip4/192.168.1.9/tcp/4001", f"/ip4/192.168.1.5/tcp/4001/p2p/{LEARNER}"


async def _named(role: Role, own: tuple[str, ...], link: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a node that sees a listed seeder on its local network names it in the link."""
    monkeypatch.setattr(link_keeper, "_TURN_S", 0.0)
    seen = LinkedRecord(SEEDER, b"", Role.SEEDER, (HOME,), subnet_of(HOME), is_chosen=True, since=0.0, is_listed=True)
    node, looked = lonely_node(), asyncio.Event()
    node.dial_rules = rules_for((HOME_OF_LEARNER,))
    node.connections.is_relayed = lambda _: looked.set()  # asked for right after the link's peers are chosen
    node.connections.linked_records = lambda: [seen]
    transport = Transport()
    transport.addresses = own
    kept = keeper(node, "", role=role, bootstrap=link)
    driver = cast(NodeDriver, SimpleNamespace(wake=lambda: None))
    task = asyncio.create_task(kept.run(cast(Any, transport), driver))
    await looked.wait()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert set(kept.link_peers) <= {f"{HOME}/p2p/{SEEDER}"}
    return bool(kept.link_peers)


@pytest.mark.parametrize(
    ("role", "own", "link", "is_named"),
    [
        (Role.BOARD, (), (NEW,), False),
        (Role.BOARD, (), (f"/dns4/example.org/tcp/4001/p2p/{LEARNER}",), False),
        (Role.BOARD, (), (HOME_OF_LEARNER,), True),
        (Role.LEARNER, (HOME_OF_LEARNER, NEW), (), False),
        (Role.LEARNER, (HOME_OF_LEARNER, f"{NEW}/p2p-circuit/p2p/{LEARNER}"), (), False),
        (Role.LEARNER, (HOME_OF_LEARNER,), (NEW,), True),
    ],
)
def test_a_private_address_of_a_peer_is_named_in_links_of_its_network_alone(
    role: Role, own: tuple[str, ...], link: tuple[str, ...], is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board at home named its neighbors of the local network on a page that the whole internet could read."""
    assert asyncio.run(_named(role, own, link, monkeypatch)) is is_named
