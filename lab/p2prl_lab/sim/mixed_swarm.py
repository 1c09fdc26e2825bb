"""A simulated swarm of honest and dishonest volunteers, whose learner checks their work, or trusts them."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from p2prl.client.next_action import AgentConfig
from p2prl.client.service import VolunteerConfig
from p2prl.learner.assembly import Judges
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.net.process.bridge import NetworkPort
from p2prl.protocol.envelope import Opened
from p2prl.protocol.identity import Identity
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.sim.machines import identity_of
from p2prl.sim.simulated_port import SimulatedPort
from p2prl.sim.swarm import Swarm
from p2prl.sim.swarm_config import SwarmConfig
from p2prl_lab.sim.cheat import Cheat, PublishingPort
from p2prl_lab.sim.dishonest_volunteers import CHEATS
from p2prl_lab.sim.trusting_learner import TRUSTING

_SLOTS = 4
"""Slots in flight of each volunteer."""

_BACKLOG = 16
"""Groups without a receipt at which an honest one pauses."""


class MixedSwarm(Swarm):
    """A simulated swarm whose last volunteers cheat."""

    def __init__(
        self,
        config: SwarmConfig,
        loaded: LoadedModel,
        directory: Path,
        *,
        cheats: Sequence[str] = (),
        checks: bool = True,
    ) -> None:
        """`cheats` has a key of `CHEATS` for each dishonest volunteer, of which `config` counts all. Without `checks`
        the learner trains on whatever it gets."""
        self._cheats = tuple(cheats)
        self._checks = checks
        self._honest = config.volunteers - len(cheats)
        self._heard: list[deque[RolloutGroup]] = []
        self.kinds: dict[bytes, str] = {}
        """How each volunteer cheats, by public key; empty for honest ones."""
        super().__init__(config, loaded, directory)

    def _judges(self) -> Judges:
        return Judges() if self._checks else TRUSTING

    def _volunteer_config(self, number: int) -> VolunteerConfig:
        if number >= self._honest:
            return VolunteerConfig(redeliver_s=4 * 3600.0, agent=AgentConfig(slots_in_flight=_SLOTS, backlog=1_000_000))
        return VolunteerConfig(agent=AgentConfig(slots_in_flight=_SLOTS, backlog=_BACKLOG))

    def _network_of(self, number: int, identity: Identity, port: SimulatedPort) -> NetworkPort:
        if number < self._honest:
            self.kinds[identity.public_key] = ""
            return PublishingPort(port, self._overheard)
        kind = self.kinds[identity.public_key] = self._cheats[number - self._honest]
        rng = random.Random(f"cheat/{number}")  # noqa: S311 - simulated
        neighbor = identity_of(f"volunteer {self._config.seed}/0") if self._honest else None
        cheat = Cheat(identity, kind, self.kinds, self._run, self.network, rng, neighbor)
        self._heard.append(cheat.heard)
        return CHEATS[kind](port, cheat)

    def _overheard(self, opened: Opened, group: RolloutGroup) -> Iterator[bytes]:
        """The envelope as it was, which every volunteer gets."""
        for heard in self._heard:
            heard.append(group)
        yield opened.raw
