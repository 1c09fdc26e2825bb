"""Processes of a swarm on the lab's machines, by the name of their site: start, stop, kill, read their status files."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from p2prl_lab.home_networks.namespaces import Machine
from p2prl_lab.home_networks.sites import Site
from p2prl_lab.testing.swarm_processes import RoleProcess, SwarmProcesses, kill_tree, rows, spools

LEARNER = "learner"

LEARNER_LISTEN = ("/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4001")
"""The learner's. Workers get no such option: they run as a volunteer starts them, with the link alone."""

RENTED_LISTEN = ("/ip4/0.0.0.0/tcp/443", "/ip6/::/tcp/443")
"""A seeder's that waits for a learner at home: the port that networks let out which let out nothing else."""

_LEAVE_S = 25.0
_FRESH_S = 5.0
"""A status older than this says nothing of now."""


class SiteProcesses(ABC):
    """The roles' processes. Subclasses say which programs they run."""

    def __init__(self, folder: Path, machines: Mapping[str, Machine], processes: SwarmProcesses) -> None:
        self._folder = folder
        self._machines = machines
        self._processes = processes
        self.roles: dict[str, RoleProcess] = {}

    @abstractmethod
    def prepare(self) -> None:
        """Make what the roles need."""

    @abstractmethod
    def start_waiting_seeder(self, name: str) -> tuple[str, ...]:
        """Start a seeder that knows the run's digest alone; returns the addresses at which a learner finds it."""

    @abstractmethod
    def start_learner(self, via: tuple[str, ...] = ()) -> None:
        """Start the learner, or start it again, and wait for its link. `via` are peers that it dials first."""

    @abstractmethod
    def start_worker(self, name: str, verb: str) -> None:
        """Start a worker with the link alone; `verb` is `join` or `seed`."""

    @abstractmethod
    def versions(self) -> int:
        """Versions published so far."""

    @abstractmethod
    def link_addresses(self) -> tuple[str, ...]:
        """Multiaddrs in the join link."""

    def link_peers(self) -> int:
        """Peers that the join link names, the learner among them."""
        return len({address.rpartition("/p2p/")[2] for address in self.link_addresses()})

    @abstractmethod
    def group_counts(self) -> dict[str, int]:
        """What became of the groups, from the files of stopped roles: `delivered`, `lost`, `double`, `waiting`,
        `voided`."""

    def policy_of(self, name: str) -> int:
        """The newest version that a worker holds; -1 for none."""
        return int(self.status(name).get("version", -1))

    def groups_of(self, name: str) -> int:
        """Groups that a worker has sampled, by its spools."""
        return sum(int(rows(spool, "SELECT COUNT(*) FROM groups")[0][0]) for spool in spools(self.home(name)))

    def used_of(self, name: str) -> int:
        """Groups of a worker that the learner has verified, by its spools."""
        query = "SELECT COUNT(*) FROM groups WHERE state = 'verified'"
        return sum(int(rows(spool, query)[0][0]) for spool in spools(self.home(name)))

    def status(self, name: str) -> dict[str, Any]:
        """The newest status of a worker; empty before the first."""
        paths = sorted(self.home(name).glob("**/status.json"))
        return dict(json.loads(paths[0].read_text())) if paths else {}

    def has_learner(self, name: str) -> bool:
        """Whether a worker has a link with the learner, by its own status, of now."""
        status = self.status(name)
        is_fresh = time.time() - float(status.get("time", 0.0)) < _FRESH_S
        return is_fresh and bool(status.get("peers", {}).get("learner"))

    def start_again(self, name: str) -> None:
        """Start a role that has ended as it was started before."""
        self._processes.start_again(self.roles[name])

    def has_circuit(self, name: str) -> bool:
        """Whether a worker names a circuit among its addresses: network processes say so, and commands where nothing
        better than a circuit leads to them."""
        status = self.status(name)
        return status.get("reach") == "relayed" or any("p2p-circuit" in text for text in status.get("addresses", ()))

    def kill(self, name: str) -> None:
        """SIGKILL a role, its network process and its daemon."""
        kill_tree(self.roles[name])

    def stop(self, names: list[str]) -> None:
        """Ctrl-C, and SIGKILL for those that stay too long."""
        for name in names:
            if self.roles[name].is_alive:
                self.roles[name].process.send_signal(signal.SIGINT)
        until = time.monotonic() + _LEAVE_S
        for name in names:
            try:
                self.roles[name].process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill(name)

    def home(self, name: str) -> Path:
        """Folder of a worker."""
        return self._folder / "homes" / name

    def start_router_programs(self, site: Site) -> None:
        """Start what opens ports on a home's router, if it does."""
        if not site.port_requests_at:
            return
        python, host = self._python_on(site.name, router=0), str(site.router)
        rooms = "p2prl_lab.home_networks"
        port = str(site.port_requests_at)
        self._processes.start(f"ports-of-{site.name}", host, port, module=f"{rooms}.port_mapper", python=python)
        if site.kind == "gateway":
            self._processes.start(f"gateway-of-{site.name}", host, module=f"{rooms}.gateway_device", python=python)

    def start(self, name: str, *arguments: str, module: str = "p2prl", home: Path | None = None) -> None:
        """Start `python -m module ARGUMENTS…` on a site's machine, or start it again as it was."""
        if name in self.roles:
            self.start_again(name)
            return
        python = self._python_on(name)
        self.roles[name] = self._processes.start(name, *arguments, module=module, home=home, python=python)

    def _python_on(self, name: str, router: int | None = None) -> str:
        """An interpreter that runs on a site's machine, or on its router."""
        python = self._folder / f"python-{name}{'' if router is None else f'-router-{router}'}"
        inside = self._machines[name].inside(sys.executable, router=router)
        python.write_text(f'#!/bin/sh\nexec {shlex.join(inside)} "$@"\n')
        python.chmod(0o755)
        return str(python)
