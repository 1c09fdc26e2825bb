"""Outages that a running swarm gets over by itself: its only relay restarts, or its learner gets another address."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from p2prl_lab.home_networks import figures
from p2prl_lab.home_networks.router import RouterControl
from p2prl_lab.home_networks.site_processes import LEARNER, SiteProcesses

Watch = Callable[[Callable[[], bool], str, Callable[[], str]], None]
"""Waits until its first argument is true, or for the lab's patience; the others say what for, and how far it is."""


class Outages:
    """Measures of one swarm. `relay` is its first public seeder, and `homes` are the workers behind routers."""

    def __init__(self, swarm: SiteProcesses, control: RouterControl, homes: list[str], relay: str) -> None:
        self._swarm = swarm
        self._control = control
        self._homes = homes
        self._relay = relay
        self.home_groups: dict[str, Any] = {}
        """After the relay's restart, if homes sampled: as the lab's."""
        self.relay_up_s: float | None = None
        """When the relay, started again, had talked with somebody: a busy machine takes long to start it."""
        self.learner_circuit_s: float | None = None
        """When the learner named a circuit again, after its address changed while it ran."""

    def restart_relay(self, stay_away: Callable[[], None], watch: Watch) -> dict[str, float | None]:
        """When each home had a circuit, or had talked with another home, after the relay was started again."""
        samplers = [name for name in self._homes if self._swarm.used_of(name)]
        sampled = {name: self._swarm.groups_of(name) for name in samplers}
        self._swarm.kill(self._relay)
        stay_away()
        used = {name: self._swarm.used_of(name) for name in samplers}
        self._swarm.start_again(self._relay)
        self._control.forget_traffic()
        began = time.monotonic()
        meanwhile = sum(self._swarm.groups_of(name) - sampled[name] for name in samplers)
        found: dict[str, float | None] = dict.fromkeys(self._homes)
        used_again: dict[str, float | None] = dict.fromkeys(samplers)

        def look() -> bool:
            talked, after_s = figures.talked_since(self._control.traffic()), round(time.monotonic() - began, 1)
            if self.relay_up_s is None and any(self._relay in pair for pair in talked):
                self.relay_up_s = after_s
            for name in self._homes:
                is_direct = any(name in pair and pair <= {*self._homes, LEARNER} for pair in talked)
                # A status may be some seconds old: a slot at the old relay needs packets of the new one.
                is_relayed = frozenset((name, self._relay)) in talked and self._swarm.has_circuit(name)
                if found[name] is None and (is_direct or is_relayed):
                    found[name] = after_s
            for name in samplers:
                if used_again[name] is None and self._swarm.used_of(name) > used[name]:
                    used_again[name] = after_s
            return None not in (*found.values(), *used_again.values())

        watch(look, "circuits", lambda: _counted(found))
        if samplers:
            self.home_groups = {"sampled_meanwhile": meanwhile, "used_after_s": figures.slowest(used_again)}
        return found

    def move_learner(self, move: Callable[[], None], watch: Watch, *, at_home: bool) -> dict[str, float | None]:
        """When each home had the learner, at an address that it got while it ran, and a version published there: over
        packets of the two, or over a circuit of a learner `at_home`."""
        move()
        self._control.forget_traffic()
        began, newest = time.monotonic(), self._swarm.versions()
        found: dict[str, float | None] = dict.fromkeys(self._homes)

        def look() -> bool:
            talked, after_s = figures.talked_since(self._control.traffic()), round(time.monotonic() - began, 1)
            has_relay = at_home and frozenset((LEARNER, self._relay)) in talked
            for name in self._homes:
                is_there = self._swarm.has_learner(name) and self._swarm.policy_of(name) >= newest
                if found[name] is None and is_there and (frozenset((name, LEARNER)) in talked or has_relay):
                    found[name] = after_s
            if has_relay and self.learner_circuit_s is None and self._swarm.has_circuit(LEARNER):
                self.learner_circuit_s = after_s
            return None not in found.values()

        watch(look, "relinking", lambda: _counted(found))
        return found


def _counted(found: dict[str, float | None]) -> str:
    return str(sum(after_s is not None for after_s in found.values()))
