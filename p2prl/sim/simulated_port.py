"""A role's network port on virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from p2prl.net.process import bridge, control
from p2prl.net.process.patch_decoder import carry_out, forget
from p2prl.net.storage.held_weights import has_weights
from p2prl.net.storage.store_files import UnsyncedFiles
from p2prl.protocol.identity import PeerId
from p2prl.sim.costs import Tally
from p2prl.sim.shared_decoding import SharedDecoding
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm.events import Event, VersionReady
from p2prl.swarm.signals import Publish


@dataclass(slots=True)
class SimulatedPort:
    """A `NetworkPort` over `VirtualNetwork`. Messages sent during a turn leave when the turn's work is done."""

    network: VirtualNetwork
    peer: PeerId
    addresses: tuple[str, ...]
    path_of: Callable[[bytes], Path]
    tally: Tally = field(default_factory=Tally)
    decoding: SharedDecoding = field(default_factory=SharedDecoding)
    """Shared by all machines of a simulation."""
    inbox: deque[control.FromNetwork] = field(default_factory=deque)
    hold_s: float = 0.0
    """Virtual seconds before messages sent now leave."""
    status: control.Status | None = None
    held: dict[bytes, bytes] = field(default_factory=dict)
    """Envelopes of the policies completed here, by the root of their weights; a real node keeps them on disk."""

    def send(self, message: control.ToNetwork) -> None:
        """Pass a message to the node after the work that produced it is done."""
        if isinstance(message, Publish):
            self.tally.sent(message.envelope, self.network.now)

        def act() -> None:
            if self.network.is_up(self.peer) and not isinstance(message, control.ProcessOrder):
                answer = self.network.node(self.peer).order(message, self.network.now)
                if answer is not None:
                    self.inbox.append(answer)
                self.network.wake(self.peer)

        if self.hold_s > 0:
            self.network.after(self.hold_s, act)
        else:
            act()

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """Everything that arrived since the last turn; virtual time does not advance here."""
        del timeout_s
        messages = list(self.inbox)
        self.inbox.clear()
        return messages

    def wake(self) -> None:
        """Nothing waits on virtual time."""

    def close(self) -> None:
        """Nothing to close."""

    def on_event(self, event: Event) -> None:
        """Handle the node's event. Patches are decoded at once: computation takes no virtual time."""
        self.tally.on_event(self.peer, event, self.network.now)
        if isinstance(event, VersionReady):
            self.held[event.manifest.weights.root] = event.raw
        message = bridge.message_of(event, path_of=self.path_of, status=self.make_status)
        if isinstance(message, control.PatchesReady):
            answer, _ = carry_out(message, UnsyncedFiles(), self.decoding.of(message))
            self.network.node(self.peer).order(answer, self.network.now)
            self.network.wake(self.peer)
        elif isinstance(message, control.WeightsReleased):
            forget(message)
        else:
            self.inbox.append(message)

    def still_held(self) -> list[bytes]:
        """Envelopes of the policies whose weights are still on disk."""
        return [raw for root, raw in self.held.items() if has_weights(self.path_of(root))]

    def make_status(self) -> control.Status:
        """Peer links now; the simulator does not measure memory."""
        peers = self.network.node(self.peer).roles()
        self.status = control.Status(peers, 0, 0, 0, 0, (-1, 0, 0), 0, 0)
        return self.status
