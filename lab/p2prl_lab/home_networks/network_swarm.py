"""A swarm of the product's network processes alone on the lab's machines: random weights of any size, and no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2prl.cli.commands.seed_worker import one_of_each_family
from p2prl_lab.home_networks.namespaces import Machine
from p2prl_lab.home_networks.site_processes import LEARNER, LEARNER_LISTEN, RENTED_LISTEN, SiteProcesses
from p2prl_lab.testing.swarm_processes import SwarmProcesses, wait_until

_START_S = 600.0


class NetworkSwarm(SiteProcesses):
    """`network_peer` on every machine."""

    def __init__(
        self,
        folder: Path,
        machines: Mapping[str, Machine],
        processes: SwarmProcesses,
        *,
        weight_bytes: int,
        period_s: float,
        home_transport: str = "hivemind",
    ) -> None:
        """The learner publishes `weight_bytes` every `period_s`. Homes use `home_transport`."""
        super().__init__(folder, machines, processes)
        self._weights = {"weight_bytes": weight_bytes, "period_s": period_s}
        self._home_transport = home_transport
        self._link = folder / "link.json"

    def prepare(self) -> None:
        """Nothing to make."""

    def start_waiting_seeder(self, name: str) -> tuple[str, ...]:
        """Start it at a fixed port on IPv4 and IPv6."""
        self._start_peer(name, "seeder", RENTED_LISTEN, waits=True)
        wait_until(lambda: self.status(name).get("addresses"), seconds=_START_S, what="the seeder's address")
        return one_of_each_family(self.status(name)["addresses"])

    def start_learner(self, via: tuple[str, ...] = ()) -> None:
        """Start it at a fixed port on IPv4 and IPv6."""
        self._link.unlink(missing_ok=True)
        self._start_peer(LEARNER, "learner", LEARNER_LISTEN, via=via)
        wait_until(self._link.exists, seconds=_START_S, what="the learner's link")

    def start_worker(self, name: str, verb: str) -> None:
        """Start a volunteer, or a seeder."""
        own = {} if name.startswith("public-") else {"transport": self._home_transport}
        self._start_peer(name, "volunteer" if verb == "join" else "seeder", (), **own)

    def versions(self) -> int:
        """Versions that the learner has published."""
        return 1 + int(self.status(LEARNER).get("version", -1))

    def link_addresses(self) -> tuple[str, ...]:
        """Those in the learner's file."""
        return tuple(json.loads(self._link.read_text()))

    def group_counts(self) -> dict[str, int]:
        """There are none."""
        return dict.fromkeys(("delivered", "lost", "double", "waiting", "voided"), 0)

    def _start_peer(self, name: str, role: str, listen: tuple[str, ...], **more: Any) -> None:
        home = self.home(name)
        home.mkdir(parents=True, exist_ok=True)
        given: dict[str, Any] = {
            "role": role, "folder": str(home), "link": str(self._link), "listen": listen, **self._weights, **more
        }  # fmt: skip
        self.start(name, json.dumps(given), module="p2prl_lab.home_networks.network_peer")
