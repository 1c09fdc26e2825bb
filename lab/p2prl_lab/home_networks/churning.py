"""Churn, carried out: planned absences on a running swarm, and the memory of its network processes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import psutil

from p2prl_lab.home_networks.churn import Absence, MemorySample, memory_rows
from p2prl_lab.home_networks.router import RouterControl
from p2prl_lab.home_networks.site_processes import SiteProcesses
from p2prl_lab.testing.swarm_processes import go_on, stop_sending

_POLL_S, _SAMPLE_S, _NEWS_S = 0.5, 10.0, 30.0
_LONG_LIVED = 0.25
"""Memory is told of processes that live for this share of the time: the learner lives a third of it."""


class Churning:
    """The absences of one swarm."""

    def __init__(
        self,
        swarm: SiteProcesses,
        control: RouterControl,
        moves: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        """`moves` gives a home another address."""
        self._swarm = swarm
        self._control = control
        self._moves = moves
        self._say = say
        self._asleep: dict[str, list[psutil.Process]] = {}
        self._samples: list[MemorySample] = []
        self._ended: list[str] = []

    def run(self, planned: list[Absence], duration_s: float) -> dict[str, Any]:
        """Carry them out; returns `duration_s`, `absences` by way, `versions` published, `ended` (the last output of
        roles that ended while they should be up: they are started again) and `memory` (`churn.memory_rows`)."""
        began, sample_at, news_at = time.monotonic(), 0.0, 0.0
        first = self._swarm.versions()
        waiting, away, ways = list(planned), list[Absence](), dict[str, int]()
        while (now := time.monotonic() - began) < duration_s:
            for absence in [absence for absence in away if absence.until_s <= now]:
                away.remove(absence)
                self._say(f"churn: {absence.name} is back")
                self._bring_back(absence)
            while waiting and waiting[0].from_s <= now:
                absence = waiting.pop(0)
                ways[absence.way] = ways.get(absence.way, 0) + 1
                self._say(f"churn: {absence.name} {absence.way}")
                self._take_away(absence)
                away.append(absence)
            self._start_dead({absence.name for absence in away})
            if now >= sample_at:
                sample_at = now + _SAMPLE_S
                self._sample(now)
            if now >= news_at:
                news_at = now + _NEWS_S
                self._say(f"churn: {now:.0f} of {duration_s:.0f} s, {self._swarm.versions()} versions")
            time.sleep(_POLL_S)
        for absence in away:
            self._bring_back(absence)
        return {
            "duration_s": duration_s,
            "absences": dict(sorted(ways.items())),
            "versions": self._swarm.versions() - first,
            "ended": self._ended,
            "memory": memory_rows(self._samples, _LONG_LIVED * duration_s),
        }

    def _take_away(self, absence: Absence) -> None:
        name = absence.name
        match absence.way:
            case "left":
                self._swarm.stop([name])
            case "killed":
                self._swarm.kill(name)
            case "asleep":
                self._asleep[name] = self._swarm.roles[name].tree()
                stop_sending(self._asleep[name])
            case _:
                self._control.cut(name)

    def _bring_back(self, absence: Absence) -> None:
        name = absence.name
        match absence.way:
            case "left" | "killed":  # the learner too: it keeps its address and its link
                self._swarm.start_again(name)
            case "asleep":
                go_on(self._asleep.pop(name))
            case "moved":
                self._moves(name)
                self._control.heal(name)
            case _:
                self._control.heal(name)

    def _start_dead(self, away: set[str]) -> None:
        """Start roles again that have ended by themselves, as a service does."""
        for name, role in self._swarm.roles.items():
            if not role.is_alive and name not in away:
                self._say(f"churn: {name} has ended")
                self._ended.append(f"{name}: {role.log[-300:]}")
                self._swarm.start_again(name)

    def _sample(self, now: float) -> None:
        for name, role in self._swarm.roles.items():
            for part, process in (("network", role.network()), ("daemon", role.daemon())):
                if process is not None:
                    with contextlib.suppress(psutil.Error):  # it has ended since
                        resident = process.memory_info().rss
                        self._samples.append(MemorySample(now, name, part, process.pid, resident))
