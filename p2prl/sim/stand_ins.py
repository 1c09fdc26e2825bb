"""What stands in for hardware in a simulated role: one model shared by all engines, and a network on virtual time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from blake3 import blake3

from p2prl.models.engine_port import Engine, Generation, GenerationRequest, Scored, StagedWeights, Weights
from p2prl.models.transformers_engine import UNNAMED
from p2prl.net.process import bridge, control
from p2prl.net.storage.patch_decoder import carry_out
from p2prl.protocol.identity import PeerId
from p2prl.protocol.rollout_group import EngineClass
from p2prl.sim.virtual_network import VirtualNetwork
from p2prl.swarm.events import Event, VersionReady

_STAGED_KEPT = 8
"""Checked policies kept: simulated peers sample with the same few versions."""


class SharedModel:
    """The one model behind every simulated peer's engine. A policy is checked once, and copied in when it changes."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._staged: dict[tuple[int, bytes], StagedWeights] = {}
        self._in_engine: StagedWeights | None = None

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check a policy, unless it has been."""
        words = bytes(weights)
        name = version, blake3(words).digest()
        if name not in self._staged:
            if len(self._staged) == _STAGED_KEPT:
                del self._staged[next(iter(self._staged))]
            self._staged[name] = self.engine.stage(words, version)
        return self._staged[name]

    def claim(self, staged: StagedWeights) -> Engine:
        """The engine, with this policy in it."""
        if self._in_engine is not staged:
            self._in_engine = None
            self.engine.swap(staged)
            self._in_engine = staged
        return self.engine


class SharedEngine:
    """A simulated peer's engine: it takes up its own policy before it computes, as if it had a model of its own."""

    def __init__(self, model: SharedModel) -> None:
        self._model = model
        self._staged: StagedWeights | None = None

    @property
    def engine_class(self) -> EngineClass:
        """That of the shared engine."""
        return self._model.engine.engine_class

    def load_weights(self, weights: Weights) -> None:
        """Take up a policy."""
        self.swap(self.stage(weights, UNNAMED))

    def stage(self, weights: Weights, version: int) -> StagedWeights:
        """Check a policy, with the shared engine's layout."""
        return self._model.stage(weights, version)

    def swap(self, staged: StagedWeights) -> None:
        """Take up a checked policy."""
        self._staged = staged
        self._claim()

    def generate(
        self,
        requests: Sequence[GenerationRequest],
        *,
        should_stop: Callable[[], bool] | None = None,
        on_step: Callable[[int], None] | None = None,
    ) -> list[Generation]:
        """Sample under this peer's weights."""
        return self._claim().generate(requests, should_stop=should_stop, on_step=on_step)

    def replay(self, requests: Sequence[GenerationRequest], token_ids: Sequence[Sequence[int]]) -> list[Scored]:
        """Replay under this peer's weights."""
        return self._claim().replay(requests, token_ids)

    def _claim(self) -> Engine:
        assert self._staged is not None
        return self._model.claim(self._staged)


@dataclass(slots=True)
class SimulatedNetwork:
    """A role's network on virtual time. What a role says during a turn leaves when the turn's work is done."""

    network: VirtualNetwork
    peer: PeerId
    addresses: tuple[str, ...]
    path_of: Callable[[bytes], Path]
    inbox: deque[control.FromNetwork] = field(default_factory=deque)
    hold_s: float = 0.0
    """Virtual seconds before messages sent now leave."""
    status: control.Status | None = None
    held: dict[bytes, bytes] = field(default_factory=dict)
    """Envelopes of the policies that have been whole here, by the root of their weights: what a disk remembers."""

    def send(self, message: control.ToNetwork) -> None:
        """Hand a message to the node, once the work it stands for is done."""

        def act() -> None:
            if self.network.is_up(self.peer):
                bridge.apply_message(self.network.node(self.peer), message, self.network.now)
                self.network.wake(self.peer)

        if self.hold_s > 0:
            self.network.after(self.hold_s, act)
        else:
            act()

    def poll(self, timeout_s: float) -> list[control.FromNetwork]:
        """Everything that arrived since the last turn; virtual time does not wait here."""
        del timeout_s
        messages = list(self.inbox)
        self.inbox.clear()
        return messages

    def close(self) -> None:
        """Nothing to close."""

    def on_event(self, event: Event) -> None:
        """Take the node's event."""
        if isinstance(event, VersionReady):
            self.held[event.manifest.weights.root] = event.raw
        message = bridge.message_of(event, path_of=self.path_of, status=self.make_status)
        if isinstance(message, control.PatchesReady):
            bridge.apply_message(self.network.node(self.peer), carry_out(message)[0], self.network.now)
            self.network.wake(self.peer)
        else:
            self.inbox.append(message)

    def make_status(self) -> control.Status:
        """Neighbours now; the simulator keeps no account of memory."""
        peers = self.network.node(self.peer).roles()
        self.status = control.Status(peers, 0, 0, 0, 0, (-1, 0, 0), 0, 0)
        return self.status
