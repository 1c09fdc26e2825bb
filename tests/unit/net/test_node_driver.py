"""The node driver over in-memory transports: transfers, lost links, dead peers and the core's own failures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from p2prl.clock import SystemClock
from p2prl.errors import MachineError, TransportError
from p2prl.net.ports import Transport
from p2prl.net.process.key_use import KeyUse
from p2prl.net.process.node_driver import NodeDriver, RunDirectory
from p2prl.protocol import frames, wire_version
from p2prl.protocol.digests import digest
from p2prl.protocol.directory_keys import name_key
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.link_messages import Chunk, ChunkRequest, Hello, Meeting
from p2prl.protocol.manifests import BlobRef, PolicyManifest, blob_of
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm.events import EnvelopeArrived, Event, LookUp, Register, Send, VersionReady
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.peers.link_admission import LinkClass
from p2prl.testing.memory_transport import MemoryHub, MemoryTransport
from p2prl_lab.sim.memory_blobs import MemoryBlobs
from p2prl_lab.testing.protocol_swarm import group_of

LEARNER = identity_of("learner")
MANIFEST = seal(LEARNER, run_manifest_of(LEARNER, weight_bytes=9000), run=bytes(32), now=SystemClock().now())
RUN = envelope_digest(MANIFEST)


class SkippingClock(SystemClock):
    """The system's clock, which a test can advance without waiting."""

    skipped_s = 0.0

    def now(self) -> float:
        return super().now() + self.skipped_s


class Peer:
    """A node, its driver and its events."""

    def __init__(
        self,
        hub: MemoryHub,
        name: str,
        role: Role,
        store: MemoryBlobs | None = None,
        transport: type[MemoryTransport] = MemoryTransport,
    ) -> None:
        self.identity = identity_of(name)
        self.store = store or MemoryBlobs()
        self.clock = hub.clock
        self.events: list[Event] = []
        self.changed = asyncio.Event()
        now = self.clock.now()
        self.node = Node(self.identity, RUN, self.store, random.Random(name), NodeConfig(role=role), now)
        if role is Role.LEARNER:
            self.node.begin(MANIFEST)
        self.transport = transport(hub, self.identity.peer_id)
        self.driver = NodeDriver(self.node, self.transport, self.clock, RUN, self._on_event)
        self.driver.wake()

    def _on_event(self, event: Event) -> None:
        self.events.append(event)
        self.changed.set()

    def know(self, other: Peer) -> None:
        self.node.connected(other.identity.peer_id, self.clock.now())
        self.driver.wake()

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def close(self) -> None:
        await self.driver.close()
        await self.transport.close()


async def turns(condition: Callable[[], bool]) -> None:
    """Run the event loop until a condition holds that no event announces."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to hold")


def run(story: Callable[[MemoryHub], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story(MemoryHub(SkippingClock()))

    asyncio.run(bounded())


def weights(learner: Peer, data: bytes) -> bytes:
    ref = blob_of(data, 4096)
    learner.store.add(ref, data)
    manifest = PolicyManifest(0, 0, ref, bytes(32), b"", bytes(32), 0)
    return seal(LEARNER, manifest, run=RUN, now=learner.clock.now())


def test_weights_and_groups_are_transferred_and_close_ends_every_task() -> None:
    async def story(hub: MemoryHub) -> None:
        learner, volunteer = Peer(hub, "learner", Role.LEARNER), Peer(hub, "volunteer", Role.VOLUNTEER)
        data = random.Random(1).randbytes(9000)
        learner.node.publish(weights(learner, data), hub.clock.now())
        volunteer.know(learner)
        await volunteer.until(lambda: any(isinstance(e, VersionReady) for e in volunteer.events))
        (ready,) = [e for e in volunteer.events if isinstance(e, VersionReady)]
        assert volunteer.store.whole(ready.manifest.weights) == data
        raw = seal(volunteer.identity, group_of(1), run=RUN, now=hub.clock.now())
        volunteer.node.publish(raw, hub.clock.now())
        volunteer.driver.wake()
        await learner.until(lambda: any(isinstance(e, EnvelopeArrived) for e in learner.events))
        for peer in (learner, volunteer):
            await peer.close()
        assert len(asyncio.all_tasks()) == 1, "nothing is left behind"

    run(story)


class MetTransport(MemoryTransport):
    """Everybody dials this peer whenever it dials."""

    async def meet(self, address: str, *, dials: bool) -> None:
        """It stands at once."""

    async def replace_circuit(self, address: str) -> PeerId:
        raise AssertionError(address)


def test_a_peer_that_a_stranger_has_named_is_not_one_that_the_node_chose() -> None:
    async def story(hub: MemoryHub) -> None:
        learner = Peer(hub, "learner", Role.LEARNER, transport=MetTransport)
        eve, guests = identity_of("eve").peer_id, [identity_of(f"guest {number}") for number in range(9)]
        now = hub.clock.now()
        hello = Hello(wire_version.WIRE_VERSION, RUN, int(Role.VOLUNTEER), int(now * 1000), -1, 0)
        meetings = [
            Meeting(guest.public_key, f"/ip4/11.{place}.0.1/tcp/4001", True) for place, guest in enumerate(guests)
        ]
        learner.node.receive(b"".join(map(frames.pack, (hello, *meetings))), eve, now)
        learner.driver.wake()
        await turns(lambda: len(learner.node.connections.links) == 1 + len(guests))
        classes = {learner.node.link_class(guest.peer_id, now) for guest in guests}
        assert classes == {LinkClass.NEWCOMER}, "or they would keep their places in a full table"
        await learner.close()

    run(story)


def test_peers_find_each_other_through_the_directory_alone() -> None:
    async def story(hub: MemoryHub) -> None:
        learner = Peer(hub, "learner", Role.LEARNER)
        learner.node.publish(weights(learner, bytes(9000)), hub.clock.now())
        await turns(lambda: bool(hub.records))
        volunteer = Peer(hub, "volunteer", Role.VOLUNTEER)
        await volunteer.until(lambda: any(isinstance(e, VersionReady) for e in volunteer.events))
        for peer in (learner, volunteer):
            await peer.close()

    run(story)


def test_flush_control_delivers_the_last_messages() -> None:
    async def story(hub: MemoryHub) -> None:
        learner, volunteer = Peer(hub, "learner", Role.LEARNER), Peer(hub, "volunteer", Role.VOLUNTEER)
        volunteer.know(learner)
        await volunteer.until(lambda: volunteer.node.roles() == (("learner", 1),))
        await learner.until(lambda: learner.node.roles() == (("volunteer", 1),))
        volunteer.node.publish(seal(volunteer.identity, group_of(1), run=RUN, now=hub.clock.now()), hub.clock.now())
        await volunteer.driver.flush_control(5.0)
        await volunteer.close()
        await learner.until(lambda: any(isinstance(e, EnvelopeArrived) for e in learner.events))
        await learner.close()

    run(story)


def test_flush_control_keeps_its_timeout() -> None:
    async def story(hub: MemoryHub) -> None:
        learner, volunteer = Peer(hub, "learner", Role.LEARNER), Peer(hub, "volunteer", Role.VOLUNTEER)
        volunteer.know(learner)
        await volunteer.until(lambda: volunteer.node.roles() == (("learner", 1),))
        never = asyncio.Event()

        async def stuck(*_: object, **__: object) -> None:
            await never.wait()

        volunteer.transport.send = stuck  # type: ignore[method-assign]
        volunteer.node.publish(seal(volunteer.identity, group_of(1), run=RUN, now=hub.clock.now()), hub.clock.now())
        async with asyncio.timeout(5):
            await volunteer.driver.flush_control(0.01)
        for peer in (learner, volunteer):
            await peer.close()

    run(story)


def test_a_failed_send_loses_the_link_and_ends_its_sender_task() -> None:
    async def story(hub: MemoryHub) -> None:
        learner, volunteer = Peer(hub, "learner", Role.LEARNER), Peer(hub, "volunteer", Role.VOLUNTEER)
        volunteer.know(learner)
        await volunteer.until(lambda: volunteer.node.roles() == (("learner", 1),))
        hub.severed.add(frozenset({learner.identity.peer_id, volunteer.identity.peer_id}))
        raw = seal(volunteer.identity, group_of(1), run=RUN, now=hub.clock.now())
        volunteer.node.publish(raw, hub.clock.now())
        volunteer.driver.wake()
        await volunteer.until(lambda: volunteer.node.roles() == ())
        hub.severed.clear()
        assert isinstance(hub.clock, SkippingClock)
        hub.clock.skipped_s += 5.0
        volunteer.know(learner)  # the learner did not notice the lost link: it must still answer the hello
        await volunteer.until(lambda: volunteer.node.roles() == (("learner", 1),))
        for peer in (learner, volunteer):
            await peer.close()
        assert len(asyncio.all_tasks()) == 1

    run(story)


class Scripted:
    """A node that returns one batch of commands and records its calls."""

    def __init__(self, *commands: Send | LookUp) -> None:
        self.batch: list[Send | LookUp] = list(commands)
        self.told: list[tuple[str, PeerId]] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def note(*arguments: Any) -> Any:
            if name in ("lost", "upload_done", "dial_failed", "connected"):
                self.told.append((name, arguments[0]))
            if name == "next_deadline":
                return float("inf") if not self.batch else 0.0
            if name == "commands":
                batch, self.batch = self.batch, []
                return batch
            return None

        return note


class BrokenTransport(MemoryTransport):
    """Accepts nothing."""

    sends = 0

    async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
        self.sends += 1
        raise TransportError("cut")


def scripted(hub: MemoryHub, node: Scripted, kind: type[MemoryTransport] = BrokenTransport) -> NodeDriver:
    transport: Transport = kind(hub, identity_of("me").peer_id)
    return NodeDriver(node, transport, hub.clock, RUN, lambda _: None)  # type: ignore[arg-type]


def test_chunks_queued_for_a_lost_peer_are_dropped_together() -> None:
    async def story(hub: MemoryHub) -> None:
        peer = identity_of("gone").peer_id
        chunk = frames.pack(Chunk(bytes(32), 0, b"", bytes(100)))
        node = Scripted(*[Send(peer, chunk, bulk=True)] * 3)
        transport = BrokenTransport(hub, identity_of("me").peer_id)
        driver = NodeDriver(node, transport, hub.clock, RUN, lambda _: None)  # type: ignore[arg-type]
        driver.wake()
        await turns(lambda: len(node.told) == 3)
        assert node.told == [("upload_done", peer)] * 3
        assert transport.sends == 1, "a peer that comes back never asked for the others"
        await driver.close()

    run(story)


def test_a_peer_that_stops_reading_is_dropped() -> None:
    class Stuck(MemoryTransport):
        async def send(self, peer: PeerId, frame: bytes, *, timeout_s: float) -> None:
            await asyncio.Event().wait()

    async def story(hub: MemoryHub) -> None:
        peer = identity_of("stuck").peer_id
        frame = frames.pack(ChunkRequest(bytes(32), 0))
        node = Scripted(*[Send(peer, frame, bulk=False)] * 600)
        driver = scripted(hub, node, Stuck)
        driver.wake()
        await turns(lambda: bool(node.told))
        assert ("lost", peer) in node.told
        await driver.close()

    run(story)


def test_a_full_disk_ends_the_node_with_the_disks_own_error() -> None:
    class FullDisk(MemoryBlobs):
        def write(self, ref: BlobRef, index: int, data: bytes, proof: bytes) -> None:
            raise MachineError("no space left")

    async def story(hub: MemoryHub) -> None:
        learner = Peer(hub, "learner", Role.LEARNER)
        learner.node.publish(weights(learner, bytes(9000)), hub.clock.now())
        volunteer = Peer(hub, "volunteer", Role.VOLUNTEER, FullDisk())
        volunteer.know(learner)
        with pytest.raises(MachineError, match="space"):
            await volunteer.driver.wait()
        for peer in (learner, volunteer):
            await peer.close()

    run(story)


def test_a_slow_directory_is_asked_once_at_a_time() -> None:
    class SlowDirectory(MemoryTransport):
        asked = 0

        async def get_records(self, key: bytes) -> dict[PeerId, bytes]:
            SlowDirectory.asked += 1
            await asyncio.Event().wait()
            return {}

    async def story(hub: MemoryHub) -> None:
        node = Scripted()
        driver = scripted(hub, node, SlowDirectory)
        for _ in range(3):
            node.batch = [LookUp()]
            driver.wake()
            await turns(lambda: not node.batch)
            await turns(lambda: SlowDirectory.asked > 0)
        assert SlowDirectory.asked == 1
        await driver.close()

    run(story)


def test_the_directory_key_is_the_runs() -> None:
    async def story(hub: MemoryHub) -> None:
        learner = Peer(hub, "learner", Role.LEARNER)
        await turns(lambda: bool(hub.records))
        assert list(hub.records) == [digest("p2prl/directory/v1", RUN)]
        await learner.close()

    run(story)


def test_a_peer_is_found_by_name_and_nobody_else_there() -> None:
    async def story(hub: MemoryHub) -> None:
        now = hub.clock.now()
        transports = {name: MemoryTransport(hub, identity_of(name).peer_id) for name in ("a", "b", "reader")}
        a, b = transports["a"].peer_id, transports["b"].peer_id
        record = Register(b"a's", now + 60, under_run=False, under_name=True)
        await RunDirectory(transports["a"], RUN).write(record)
        await transports["b"].put_record(name_key(RUN, a), b"b's, under a's name", now + 60)
        await RunDirectory(transports["b"], RUN).write(Register(b"b's", now + 60))
        used: list[bool] = []
        reader = RunDirectory(transports["reader"], RUN, KeyUse(a, now, used.append))
        for wanted, found in (
            (LookUp(), [b"b's"]),
            (LookUp((a, b), is_sample=False), [b"a's"]),
            (LookUp((a,)), [b"a's", b"b's"]),
        ):
            assert reader.begin_read()
            assert await reader.read(wanted) == found
        for transport in transports.values():
            await transport.close()

    run(story)
