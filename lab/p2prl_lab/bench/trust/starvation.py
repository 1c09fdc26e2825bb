"""Weights that a node sends to honest peers while free keys ask it for everything that they can.

The learner of a run sends a large version to eight volunteers behind routers, so that each chunk comes from it.
Control frames use up its uplink as in `p2prl.net.pacing`: they never wait, and chunks wait for them. The keys say
hello, and ask for the run's documents, the ledger and the chunks held, and pay for large answers with padding.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial

from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.identity import PeerId
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.sim.virtual_time import START
from p2prl.swarm import signals
from p2prl.swarm.events import Event
from p2prl.swarm.node import Node
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl_lab.bench.trust.free_keys import ASK_S, question
from p2prl_lab.sim.memory_blobs import MemoryBlobs

MBIT_BYTES_S = 125_000.0
_VOLUNTEERS = 8
_CHUNK_BYTES = 16 * 1024
ENTRY = bytes(1_500)


@dataclass(frozen=True, kw_only=True, slots=True)
class StarvationPlan:
    """A flood of questions, seconds from the start of the run."""

    upload_mbit: float
    keys: int = 16
    addresses: int = 1
    begins_s: float = 30.0
    lasts_s: float = 60.0
    recovery_s: float = 10.0
    """Until chunks leave as before."""
    after_s: float = 30.0
    seed: int = 0

    @property
    def ends_s(self) -> float:
        """When the last question is asked."""
        return self.begins_s + self.lasts_s


@dataclass(frozen=True, slots=True)
class StarvedRow:
    """What a flood leaves of the chunks that honest peers get without it."""

    upload_mbit: float
    keys: int
    addresses: int
    honest_share_during: float
    honest_share_after: float


class AskedLearner:
    """A learner with one version, a ledger and receipts, and the keys that question it."""

    def __init__(self, plan: StarvationPlan) -> None:
        """A plan with no keys is a quiet run."""
        self.plan = plan
        self.network = VirtualNetwork(plan.seed)
        self._rng = random.Random(f"starvation/{plan.seed}")  # noqa: S311 - simulated
        self._key = identity_of("learner")
        upload = plan.upload_mbit * MBIT_BYTES_S
        size = 2 * upload * (plan.ends_s + plan.recovery_s + plan.after_s) / _VOLUNTEERS
        weights = self._rng.randbytes(int(size) // _CHUNK_BYTES * _CHUNK_BYTES)
        self._ref = blob_of(weights, _CHUNK_BYTES)
        self._manifest = seal(
            self._key, run_manifest_of(self._key, weight_bytes=len(weights)), run=bytes(32), now=START
        )
        self.run = envelope_digest(self._manifest)
        self._names: tuple[Digest, ...] = (self.run,)
        self._store = MemoryBlobs()
        self._store.add(self._ref, weights)
        self.ready: dict[PeerId, float] = {}
        """When each volunteer knew of the version."""
        self.network.place(self._key.peer_id, _address(250))
        self.network.host(
            self._key.peer_id, self.run, self._make, self._on_event, upload_bytes_s=upload, shares_uplink=True
        )  # fmt: skip
        self.network.after(plan.begins_s, self._flood)

    def _make(self, now: float, rng: random.Random) -> Node:
        relay = RelayConfig(upload_bytes_s=self.plan.upload_mbit * MBIT_BYTES_S)
        node = Node(self._key, self.run, self._store, rng, NodeConfig(role=Role.LEARNER, relay=relay), now)
        node.begin(self._manifest)
        receipts = tuple(
            Receipt(self._rng.randbytes(32), bytes(32), 0, slot, int(ReceiptState.VERIFIED), "", 32, 4, 1.0)
            for slot in range(limits.MAX_RECEIPTS_PER_MESSAGE)
        )
        version = PolicyManifest(0, 0, self._ref, bytes(32), b"", bytes(32), int(now * 1000), ())
        for body in (version, Receipts(1, receipts)):
            raw = seal(self._key, body, run=self.run, now=now)
            node.publish(raw, now)
            self._names = (*self._names, envelope_digest(raw))
        node.order(signals.SetLedgerHeight(100_000), now)
        return node

    def join(self, name: str, place: int) -> PeerId:
        """A volunteer behind a router, at an address of this subnet, dials the learner."""
        identity = identity_of(name)

        def make(now: float, rng: random.Random) -> Node:
            return Node(identity, self.run, MemoryBlobs(), rng, NodeConfig(role=Role.VOLUNTEER), now)

        self.network.place(identity.peer_id, _address(place))
        self.network.host(
            identity.peer_id, self.run, make, partial(self._on_volunteer, identity.peer_id), dialable=False
        )
        self.network.connect(identity.peer_id, self._key.peer_id)
        return identity.peer_id

    def restart(self) -> None:
        """The learner starts anew."""
        self.network.crash(self._key.peer_id)
        self.network.restart(self._key.peer_id)

    def sent_bytes(self, until_s: float) -> int:
        """Bytes of chunks that have arrived at a time."""
        self.network.run_until(START + until_s)
        return self.network.counters.bulk_bytes

    def _on_event(self, event: Event) -> None:
        if isinstance(event, signals.LedgerWanted) and self.network.is_up(self._key.peer_id):
            page = (ENTRY,) * limits.MAX_LEDGER_ENTRIES_PER_REPLY
            order = signals.SendLedger(event.peer, event.from_height, page)
            self.network.node(self._key.peer_id).order(order, self.network.now)
            self.network.wake(self._key.peer_id)

    def _on_volunteer(self, peer: PeerId, event: Event) -> None:
        if isinstance(event, signals.VersionAnnounced):
            self.ready.setdefault(peer, self.network.now - START)

    def _flood(self) -> None:
        for number in range(self.plan.keys):
            peer = identity_of(f"asker {number}").peer_id
            self.network.add_stranger(peer, _address(number % self.plan.addresses))
            self.network.after(self._rng.random() * ASK_S, partial(self._ask, peer, number))

    def _ask(self, peer: PeerId, turn: int) -> None:
        network = self.network
        if network.now >= START + self.plan.ends_s:
            return
        network.inject(peer, self._key.peer_id, question(self.run, self._names, self._ref.root, turn, network.now))
        network.after(ASK_S, partial(self._ask, peer, turn + 1))


def _address(place: int) -> str:
    return f"/ip4/44.{place}.7.1/tcp/4001"


def starved_row(plan: StarvationPlan) -> StarvedRow:
    """Chunks during a flood and after it, of those in the same run without the flood."""
    flooded, quiet = _sent(plan), _sent(replace(plan, keys=0))
    during, after = (with_it / without for with_it, without in zip(flooded, quiet, strict=True))
    return StarvedRow(plan.upload_mbit, plan.keys, plan.addresses, during, after)


def _sent(plan: StarvationPlan) -> tuple[int, int]:
    learner = AskedLearner(plan)
    for number in range(_VOLUNTEERS):
        learner.join(f"volunteer {number}", 100 + number)
    begun, ended = learner.sent_bytes(plan.begins_s), learner.sent_bytes(plan.ends_s)
    settled = learner.sent_bytes(plan.ends_s + plan.recovery_s)
    return ended - begun, learner.sent_bytes(plan.ends_s + plan.recovery_s + plan.after_s) - settled


def answered_after_s(plan: StarvationPlan, *, restarts: bool = False, patience_s: float = 60.0) -> list[float]:
    """Seconds until each of eight newcomers knows the run's newest version; infinite for one that never does.

    They join in the middle of the flood; with `restarts` the learner starts anew at that time.
    """
    learner = AskedLearner(plan)
    middle_s = plan.begins_s + plan.lasts_s / 2
    learner.sent_bytes(middle_s)
    if restarts:
        learner.restart()
    peers = [learner.join(f"volunteer {number}", 100 + number) for number in range(_VOLUNTEERS)]
    learner.sent_bytes(middle_s + patience_s)
    return [learner.ready.get(peer, float("inf")) - middle_s for peer in peers]
