"""One run of the lab: a swarm comes up, settles, loses its learner or a home's address, and is measured."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

from p2prl_lab.home_networks import figures
from p2prl_lab.home_networks.churn import absences
from p2prl_lab.home_networks.churning import Churning
from p2prl_lab.home_networks.internet import Internet
from p2prl_lab.home_networks.lab_config import LabConfig
from p2prl_lab.home_networks.namespaces import Machine, machines_of
from p2prl_lab.home_networks.network_swarm import NetworkSwarm
from p2prl_lab.home_networks.outages import Outages
from p2prl_lab.home_networks.real_swarm import RealSwarm
from p2prl_lab.home_networks.router import RouterControl, running_router
from p2prl_lab.home_networks.site_processes import LEARNER, SiteProcesses
from p2prl_lab.home_networks.sites import PUNCHABLE, LineSpeed, Site, make_site
from p2prl_lab.testing.swarm_processes import SwarmProcesses, go_on, stop_sending

_LEARNER_GOES = ("learner-restart", "learner-moves", "learner-away")
_NEWCOMER = "newcomer"

_POLL_S = 0.5
_OFFLINE_S, _ASLEEP_S, _RELAY_AWAY_S, _ROUTER_AWAY_S = 30.0, 120.0, 20.0, 20.0
_LINK_S = 120.0
"""A public peer is named in the link after seconds, once its record is known."""
_PUBLISH_S = 120.0
"""Longest wait for the learner's next version."""

_PUBLIC_SPEED = LineSpeed(up_mbit=100.0, down_mbit=100.0, delay_s=0.005)


class Lab:
    """A running swarm and its router: many attributes, because each phase leaves figures for the report."""

    def __init__(
        self,
        config: LabConfig,
        swarm: SiteProcesses,
        machines: dict[str, Machine],
        control: RouterControl,
        sites: list[Site],
    ) -> None:
        self._config = config
        self._swarm = swarm
        self._machines = machines
        self._control = control
        self._kinds = {site.name: site.kind for site in sites}
        self._workers = [site.name for site in sites if site.name not in (LEARNER, _NEWCOMER)]
        self._homes = [name for name in self._workers if self._kinds[name] != "public"]
        self._relay = next((name for name in self._workers if self._kinds[name] == "public"), "")
        self._outages = Outages(swarm, control, self._homes, self._relay)
        self._started: dict[str, float] = {}
        self._circuit_s: dict[str, float] = {}
        """When each home first named a circuit, after its start."""
        self._newcomer: dict[str, Any] = {}
        self._home_groups: dict[str, dict[str, Any]] = {}
        """Per disturbance of a home that samples: what it sampled meanwhile, and when its groups were used again."""
        self._absent: frozenset[str] = frozenset()
        """Roles that are meant to be dead."""

    def measure(self) -> dict[str, Any]:
        """Run every phase and return the report."""
        joined_s, talked, first = self._join()
        say(f"joined: {joined_s}")
        self._control.forget_traffic()
        received_before = self._weights_received()
        self._wait(self._config.steady_s, "steady")
        before = self._control.traffic()
        weights = max((self._weights_received()[n] - received_before[n] for n in self._homes), default=0)
        shares = figures.home_shares(before, self._kinds, LEARNER)
        relinked_s: dict[str, dict[str, float | None]] = {}
        after = None
        for what in self._config.disturb:
            relinked_s[what] = self._disturb(what)
            say(f"{what}: {relinked_s[what]}")
            if what in _LEARNER_GOES:
                self._control.forget_traffic()
                self._wait(self._config.steady_s, f"steady after {what}")
                after = figures.home_shares(self._control.traffic(), self._kinds, LEARNER)
        churn = self._churn() if self._config.churn_s else None
        claimed = [self._swarm.status(name) for name in self._homes]
        versions = self._swarm.versions()
        self._swarm.stop([name for name in self._swarm.roles if name != LEARNER])
        self._swarm.stop([LEARNER])
        groups = self._swarm.group_counts()
        return {
            "nat": "kernel",
            "untranslated": self._control.untranslated(),
            "pairs": figures.pair_rows(self._kinds, self._started, talked),
            "home_learner_pairs_direct": sum(frozenset((name, LEARNER)) in talked for name in self._homes),
            "relay_restart_s": figures.slowest(relinked_s["relay-restart"]) if "relay-restart" in relinked_s else None,
            "relay_up_s": self._outages.relay_up_s,
            "joined_s": joined_s,
            "first_circuit_s": self._circuit_s,
            "learner_share_of_home_bytes": shares.learner,
            "public_share_of_home_bytes": shares.public,
            "learner_share_while_joining": first.learner,
            "learner_share_claimed": figures.claimed_share(claimed),
            "learner_copies": figures.learner_copies(before, LEARNER, weights),
            "relinked_s": {what: figures.slowest(times) for what, times in relinked_s.items()},
            "relinked_s_by_home": relinked_s,
            "learner_circuit_s": self._outages.learner_circuit_s,
            "home_to_home_share_before": shares.homes,
            "home_to_home_share_after": None if after is None else after.homes,
            "home_bytes_steady": shares.total_bytes,
            "home_to_home_bytes": figures.home_to_home_bytes(before, self._kinds, LEARNER),
            "newcomer": self._newcomer,
            "home_groups": self._home_groups,
            "churn": churn,
            "versions": versions,
            "groups_delivered": groups["delivered"],
            "groups_lost": groups["lost"],
            "groups_double": groups["double"],
            "groups_waiting": groups["waiting"],
            "groups_voided": groups["voided"],
        }

    def _join(self) -> tuple[dict[str, float | None], dict[frozenset[str], float], figures.HomeShares]:
        """Start everybody; returns when each had its learner, the pairs that talked, and where bytes came from."""
        self._start_learner()
        samplers = self._homes[: self._config.samplers]
        for name in self._workers:
            if name in self._swarm.roles:
                continue
            self._started[name] = time.monotonic()
            self._swarm.start_worker(name, "join" if name in samplers else "seed")
        linked = self._await_learner(self._workers, self._config.join_s)
        traffic = self._control.traffic()
        return linked, figures.talked_since(traffic), figures.home_shares(traffic, self._kinds, LEARNER)

    def _disturb(self, what: str) -> dict[str, float | None]:
        """Do it; returns how long each home concerned then took to have the learner again."""
        say(what)
        home = self._homes[0] if self._homes else self._workers[0]
        if what in _LEARNER_GOES:
            if what == "learner-away":  # people copy a link that names others too, once they have been up for minutes
                self._watch(lambda: self._swarm.link_peers() > 1, _LINK_S, "link", lambda: "names the learner alone")
                announced = self._swarm.versions()  # it goes while it sends a version
                self._watch(lambda: self._swarm.versions() > announced, _PUBLISH_S, "next version", lambda: "")
            self._swarm.kill(LEARNER)
            if what == "learner-moves":
                self._move(LEARNER)
            elif what == "learner-away":
                self._absent = frozenset({LEARNER})
                self._newcomer = {"announced_version": self._swarm.versions() - 1, **self._welcome()}
                self._absent = frozenset()
            self._control.forget_traffic()
            self._swarm.start_learner()
            return self._await_talk(self._homes)
        if what == "relay-restart":
            return self._restart_relay()
        if what == "learner-line-moves":
            at_home = self._kinds[LEARNER] != "public"
            return self._outages.move_learner(lambda: self._move(LEARNER), self._watch_patiently, at_home=at_home)
        return self._disturb_home(what, home)

    def _start_learner(self) -> None:
        """A learner at home comes after the seeder that it is reached through."""
        via: tuple[str, ...] = ()
        if self._kinds[LEARNER] != "public":
            relay = self._relay
            self._started[relay] = time.monotonic()
            via = self._swarm.start_waiting_seeder(relay)
        self._started[LEARNER] = time.monotonic()
        self._swarm.start_learner(via)

    def _restart_relay(self) -> dict[str, float | None]:
        def stay_away() -> None:
            self._absent = frozenset({self._relay})
            self._wait(_RELAY_AWAY_S, "relay away")
            self._absent = frozenset()

        found = self._outages.restart_relay(stay_away, self._watch_patiently)
        if self._outages.home_groups:
            self._home_groups["relay-restart"] = self._outages.home_groups
        return found

    def _watch_patiently(self, is_done: Callable[[], bool], what: str, news: Callable[[], str]) -> None:
        self._watch(is_done, self._config.patience_s, what, news)

    def _disturb_home(self, what: str, home: str) -> dict[str, float | None]:
        sampled, used = self._swarm.groups_of(home), self._swarm.used_of(home)
        if what == "home-moves":
            self._move(home)
        elif what == "home-offline":
            self._control.cut(home)
            self._wait(_OFFLINE_S, what)
            self._control.heal(home)
        elif what == "router-restart":
            self._control.cut(home)
            self._wait(_ROUTER_AWAY_S, what)
            self._machines[home].restart_router()
            self._control.heal(home)
        else:
            sleeping = self._swarm.roles[home].tree()
            stop_sending(sleeping)
            self._wait(_ASLEEP_S, what)
            go_on(sleeping)
        self._control.forget_traffic()
        meanwhile, used_before = self._swarm.groups_of(home) - sampled, self._swarm.used_of(home)
        began = time.monotonic()
        relinked = self._await_talk([home])
        if used:  # it samples
            self._watch(lambda: self._swarm.used_of(home) > used_before, self._config.patience_s, "groups", lambda: "")
            is_used = self._swarm.used_of(home) > used_before
            after_s = round(time.monotonic() - began, 1) if is_used else None
            self._home_groups[what] = {"sampled_meanwhile": meanwhile, "used_after_s": after_s}
        return relinked

    def _move(self, name: str) -> None:
        """Give a site another address."""
        self._machines[name].move(self._control.move(name))

    def _churn(self) -> dict[str, Any]:
        """Let homes come and go, the learner twice; `relinked_s` is when the last home had the learner, after all."""
        rng = random.Random(self._config.seed)  # noqa: S311 - draws who is away when
        planned = absences(self._homes, LEARNER, self._config.churn_s, rng)
        found = Churning(self._swarm, self._control, self._move, say).run(planned, self._config.churn_s)
        self._control.forget_traffic()
        return {**found, "relinked_s": figures.slowest(self._await_talk(self._homes))}

    def _welcome(self) -> dict[str, Any]:
        """Half of the learner's absence alone, half of it with a newcomer that has the link: what it gets."""
        self._wait(self._config.away_s / 2, "learner away")
        newest = max(self._swarm.policy_of(name) for name in self._workers)
        began = time.monotonic()
        self._swarm.start_worker(_NEWCOMER, "join")
        at: dict[str, float] = {}

        def look() -> bool:
            after_s = round(time.monotonic() - began, 1)
            if self._swarm.status(_NEWCOMER).get("peers"):
                at.setdefault("linked_s", after_s)
            if self._swarm.policy_of(_NEWCOMER) >= newest >= 0:
                at.setdefault("newest_s", after_s)
            return False

        self._watch(look, self._config.away_s / 2, "newcomer", lambda: str(at))
        found = {
            "linked_s": at.get("linked_s"),
            "newest_s": at.get("newest_s"),
            "link_peers": self._swarm.link_peers(),
            "newest_version": newest,
            "groups": self._swarm.groups_of(_NEWCOMER),
        }
        say(f"newcomer: {found}")
        return found

    def _is_punchable(self, name: str) -> bool:
        return self._kinds[name] in PUNCHABLE

    def _await_learner(self, names: list[str], seconds: float) -> dict[str, float | None]:
        """When each worker said that it has the learner, after its start; None when it never did."""
        pairs = {frozenset(pair) for pair in combinations(filter(self._is_punchable, (LEARNER, *self._homes)), 2)}
        found: dict[str, float | None] = dict.fromkeys(names)

        def look() -> bool:
            for name in names:
                after_s = round(time.monotonic() - self._started[name], 1)
                if found[name] is None and self._swarm.has_learner(name):
                    found[name] = after_s
                if self._swarm.has_circuit(name):
                    self._circuit_s.setdefault(name, after_s)
            is_done = self._config.leave_early and None not in found.values()
            return is_done and pairs <= figures.talked_since(self._control.traffic()).keys()

        self._watch(look, seconds, "joining", lambda: f"{sum(v is not None for v in found.values())}/{len(names)}")
        return found

    def _await_talk(self, names: list[str]) -> dict[str, float | None]:
        """When each home and the learner had talked again, by the packets, and the home says so too."""
        began = time.monotonic()
        found: dict[str, float | None] = dict.fromkeys(names)

        def look() -> bool:
            talked = figures.talked_since(self._control.traffic())
            for name in names:
                if found[name] is None and frozenset((name, LEARNER)) in talked and self._swarm.has_learner(name):
                    found[name] = round(time.monotonic() - began, 1)
            return None not in found.values()

        self._watch(look, self._config.patience_s, "relinking", lambda: f"{sum(v is not None for v in found.values())}")
        return found

    def _weights_received(self) -> dict[str, int]:
        return {name: int(self._swarm.status(name).get("weight_bytes_received", 0)) for name in self._homes}

    def _wait(self, seconds: float, what: str) -> None:
        self._watch(lambda: False, seconds, what, lambda: f"{self._swarm.versions()} versions")

    def _watch(self, is_done: Callable[[], bool], seconds: float, what: str, news: Callable[[], str]) -> None:
        began = said = time.monotonic()
        while not is_done() and time.monotonic() - began < seconds:
            dead = [name for name, role in self._swarm.roles.items() if not (role.is_alive or name in self._absent)]
            if dead:
                raise SystemExit(f"{dead[0]} ended: {self._swarm.roles[dead[0]].log[-2000:]}")
            if time.monotonic() - said > 10.0:
                said = time.monotonic()
                say(f"{what}: {said - began:.0f} of {seconds:.0f} s, {news()}")
            time.sleep(_POLL_S)


def run_lab(config: LabConfig, folder: Path) -> dict[str, Any]:
    """Build the lab, run it and take it down. Call it in a space of its own (`namespaces.own_space`)."""
    rng = random.Random(config.seed)  # noqa: S311 - draws ports and lost packets
    is_public = config.learner == "public"
    sites = [make_site(LEARNER, config.learner, 0, _PUBLIC_SPEED if is_public else config.speed)]
    for number in range(config.public):
        sites.append(make_site(f"public-{number + 1}", "public", len(sites), _PUBLIC_SPEED))
    for number, kind in enumerate(config.homes):
        sites.append(make_site(f"{kind}-{number + 1}", kind, len(sites), config.speed))
    if "learner-away" in config.disturb:
        sites.append(make_site(_NEWCOMER, "restricted", len(sites), config.speed))
    processes = SwarmProcesses(folder)
    with (
        machines_of(sites) as machines,
        running_router(Internet(sites, rng), machines) as control,
        processes.running(),
    ):
        swarm: SiteProcesses
        if config.weight_bytes:
            swarm = NetworkSwarm(
                folder,
                machines,
                processes,
                weight_bytes=config.weight_bytes,
                period_s=config.period_s,
                home_transport=config.home_transport,
            )
        else:
            swarm = RealSwarm(folder, machines, processes, config.run, share=config.share)
        for site in sites:
            swarm.start_router_programs(site)
        say("making the run")
        swarm.prepare()
        return Lab(config, swarm, machines, control, sites).measure()


def say(text: str) -> None:
    """Progress, on standard error."""
    print(f"nat_lab: {text}", file=sys.stderr, flush=True)
