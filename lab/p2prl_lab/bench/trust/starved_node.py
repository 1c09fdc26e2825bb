"""Weights that a real node sends to honest peers while free keys ask it for everything that they can, over sockets.

The node is a learner's network process with an upload cap, and answers with a ledger and receipts. Honest volunteers,
network processes too, download a version from it that is too large to be done before the end, so that its uplink is
always wanted. The keys ask what they ask in `starvation.py`, from loopback addresses of their own.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from p2prl.clock import SystemClock
from p2prl.errors import MachineError
from p2prl.net.process import control
from p2prl.net.process.handle import NetworkHandle
from p2prl.net.storage.disk_blobs import DiskBlobStore
from p2prl.protocol import limits
from p2prl.protocol.digests import Digest
from p2prl.protocol.envelope import envelope_digest, seal
from p2prl.protocol.kinds import Role
from p2prl.protocol.ledger_messages import Receipt, Receipts, ReceiptState
from p2prl.protocol.manifests import PolicyManifest, blob_of
from p2prl.sim.bare_manifest import run_manifest_of
from p2prl.sim.machines import identity_of
from p2prl.swarm import signals
from p2prl.swarm.node_config import NodeConfig
from p2prl.swarm.relay.relay_config import RelayConfig
from p2prl_lab.bench.trust.bare_nodes import POLL_S, START_S, address_of, start_node
from p2prl_lab.bench.trust.free_keys import ASK_S, free_keys
from p2prl_lab.bench.trust.starvation import ENTRY, MBIT_BYTES_S, StarvedRow

_VOLUNTEERS = 4
_CHUNK_BYTES = 64 * 1024
_LEAST_IDLE = 0.1
"""Of the machine's processor time: with less, a processor and not the uplink may be what the node lacks."""

_LEAST_ASKED = 0.5
"""Questions that the keys must have sent, of those planned: a flood that this machine slows down shows nothing."""

_QUIETER = "Run it again when other programs use less of this machine; finished rows are kept."

_LEDGER_HEIGHT = 100_000


@dataclass(frozen=True, kw_only=True, slots=True)
class SocketPlan:
    """A flood of questions over sockets, in seconds."""

    upload_mbit: float
    keys: int = 16
    addresses: int = 1
    quiet_s: float = 20.0
    """What the volunteers get in this time is what they would get."""
    lasts_s: float = 40.0
    recovery_s: float = 10.0
    """Until chunks leave as before."""
    after_s: float = 20.0
    seed: int = 0


@dataclass(slots=True)
class _Volunteer:
    """An honest peer, and the weights that have arrived: (when, bytes), by its reports."""

    network: NetworkHandle
    received: list[tuple[float, int]] = field(default_factory=lambda: [(time.monotonic(), 0)])

    def poll(self) -> None:
        """Take what its network process says."""
        for message in self.network.poll(POLL_S):
            if isinstance(message, control.Status):
                self.received.append((time.monotonic(), message.received_from_source))

    def bytes_until(self, at: float) -> float:
        """Bytes that had arrived at a time, between two reports in proportion."""
        before = max((each for each in self.received if each[0] <= at), default=self.received[0])
        after = min((each for each in self.received if each[0] > at), default=before)
        passed = (at - before[0]) / (after[0] - before[0]) if after is not before else 0.0
        return before[1] + passed * (after[1] - before[1])


class AskedNode:
    """A learner's network process with one version, receipts and a ledger."""

    def __init__(self, plan: SocketPlan, folder: Path) -> None:
        self._folder, self._key = folder, identity_of("learner")
        rng, now = random.Random(f"starved node/{plan.seed}"), SystemClock().now()  # noqa: S311 - content
        upload = plan.upload_mbit * MBIT_BYTES_S
        # One copy alone keeps the uplink busy for longer than all that is measured takes.
        seconds = START_S + plan.quiet_s + plan.lasts_s + plan.recovery_s + plan.after_s
        weights = rng.randbytes(int(1.25 * upload * seconds))
        ref = blob_of(weights, _CHUNK_BYTES)
        self.root = ref.root
        self._manifest = seal(self._key, run_manifest_of(self._key, weight_bytes=len(weights)), run=bytes(32), now=now)
        self.run = envelope_digest(self._manifest)
        DiskBlobStore(folder / "learner" / "blobs").add(ref, weights)
        receipts = tuple(
            Receipt(rng.randbytes(32), bytes(32), 0, slot, int(ReceiptState.VERIFIED), "", 32, 4, 1.0)
            for slot in range(limits.MAX_RECEIPTS_PER_MESSAGE)
        )
        version = PolicyManifest(0, 0, ref, bytes(32), b"", bytes(32), int(now * 1000), ())
        self._documents = [seal(self._key, body, run=self.run, now=now) for body in (version, Receipts(1, receipts))]
        self.names: tuple[Digest, ...] = (self.run, *map(envelope_digest, self._documents))
        config = NodeConfig(role=Role.LEARNER, relay=RelayConfig(upload_bytes_s=upload))
        self.network = start_node(folder, "learner", "127.0.0.1", self.run, config, manifest=self._manifest)
        self.address = address_of(self.network)
        for raw in self._documents:
            self.network.send(signals.Publish(raw))
        self.network.send(signals.SetLedgerHeight(_LEDGER_HEIGHT))

    def volunteer(self, number: int) -> _Volunteer:
        """An honest peer that downloads the version from this node."""
        config, host = NodeConfig(role=Role.VOLUNTEER), f"127.1.{number}.1"
        return _Volunteer(start_node(self._folder, f"v{number}", host, self.run, config, bootstrap=(self.address,)))

    def poll(self) -> None:
        """Answer what the node asks of its role."""
        for message in self.network.poll(POLL_S):
            if isinstance(message, signals.LedgerWanted):
                page = (ENTRY,) * limits.MAX_LEDGER_ENTRIES_PER_REPLY
                self.network.send(signals.SendLedger(message.peer, message.from_height, page))


@contextmanager
def _running(plan: SocketPlan) -> Iterator[tuple[AskedNode, list[_Volunteer]]]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p2prl-starved-")))
        node = AskedNode(plan, folder)
        stack.enter_context(closing(node.network))
        volunteers = []
        for number in range(_VOLUNTEERS):
            volunteers.append(node.volunteer(number))
            stack.enter_context(closing(volunteers[-1].network))
        yield node, volunteers


def starved_node_row(plan: SocketPlan) -> StarvedRow:
    """Chunks that honest peers get during a flood and after it, of those before it."""
    with (
        _running(plan) as (node, volunteers),
        free_keys(
            node.address, node.run, keys=plan.keys, addresses=plan.addresses, flood="questions",
            names=[name.hex() for name in node.names], root=node.root.hex(),
        ) as keys,
    ):  # fmt: skip

        def passing(seconds: float) -> float:
            """Let this time pass; bytes a second that the volunteers got."""
            begun = time.monotonic()
            while time.monotonic() < begun + seconds:
                node.poll()
                for volunteer in volunteers:
                    volunteer.poll()
            return begun

        def rate(begun: float, seconds: float) -> float:
            return sum(each.bytes_until(begun + seconds) - each.bytes_until(begun) for each in volunteers) / seconds

        until = time.monotonic() + START_S
        while sum(each.received[-1][1] for each in volunteers) == 0:
            passing(1.0)
            if time.monotonic() > until:
                raise MachineError(f"no volunteer got weights within {START_S:.0f} s", remedy=_QUIETER)
        quiet = passing(plan.quiet_s)
        keys.begin()
        psutil.cpu_times_percent()
        flooded = passing(plan.lasts_s)
        idle = psutil.cpu_times_percent().idle / 100  # since the call before
        sent = keys.end()
        asked = plan.keys * plan.lasts_s / ASK_S
        if sent["turns"] < _LEAST_ASKED * asked:
            raise MachineError(f"only {sent['turns']} of {asked:.0f} questions were sent", remedy=_QUIETER)
        if idle < _LEAST_IDLE:
            raise MachineError(f"the processors were idle for {idle:.0%} of the flood", remedy=_QUIETER)
        passing(plan.recovery_s)
        after = passing(plan.after_s)
        passing(3.0)  # for the last report
        before = rate(quiet, plan.quiet_s)
        return StarvedRow(
            plan.upload_mbit, plan.keys, plan.addresses,
            rate(flooded, plan.lasts_s) / before, rate(after, plan.after_s) / before,
        )  # fmt: skip
