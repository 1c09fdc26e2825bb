"""A swarm over sockets with more volunteers than it needs: everybody at work, and those that agreed to it resting.

Both swarms train the same run with the same throttled volunteers (`join --share`). The forecast is the learner's own
(`plan/predicted_utilisation`), held against what it measured 16 updates later. In the second swarm a volunteer that
works is killed once somebody stands by.
"""

from __future__ import annotations

import json
import signal
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, wait_until

_VOLUNTEERS = 6
_AHEAD = 16
"""Updates that a forecast looks ahead."""
_FIRST = 20
"""Updates after which forecasts are held against what came."""
_SETTLED = 24
"""Updates after which volunteers' processor seconds count: a choice takes at least eight, and they are judged first."""
_KILLED = 0.75
"""Share of the updates after which a volunteer is killed; up to there processor seconds count."""
_REWARDS = 48
"""Updates over whose end the reward is averaged: of four groups each, whose prompts differ much."""
_WORKING_CPU_S = 0.2
"""CPU seconds between two looks, beyond which a volunteer is at work."""
_LOOK_S = 3.0
_PATIENCE_S = 1800.0
_START_S = 300.0

_SETTINGS = """
device = "cpu"
threads = 1
[learner]
groups_per_update = 4
updates = {updates}
[learner.optimizer]
learning_rate = 2e-4
[loss]
name = "topr"
options = {{negative_high = 0.25}}
"""
"""Groups are checked and trained on at four times the cost of sampling them, so that few volunteers are enough."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveRow:
    """Both swarms."""

    predicted: float
    """Utilization that the learner foresaw, mean over the forecasts from update 20 on, everybody at work."""
    realised: float
    """The utilization that came 16 updates after each of them, mean."""
    error: float
    """Mean absolute difference of the two, of what came."""
    sampler_cpu_of_all_active: float
    """CPU seconds of all volunteers' processes an update with some on standby, over those with everybody at work, from
    update 24 to the death."""
    updates_an_hour_of_all_active: float
    """Updates an hour with some on standby, over those with everybody at work."""
    reward_difference: float
    """Reward over the last 48 updates with everybody at work, less that with some on standby."""
    most_on_standby: int
    """Volunteers that stood by at once, at most."""
    replaced_after_heads: int | None
    """Versions published from the death of a working volunteer until one that stood by was called; None if nobody was
    called, since groups did not run low."""


@dataclass(slots=True)
class _Swarm:
    """What was measured of one swarm."""

    lines: list[dict[str, Any]] = field(default_factory=list)
    """Of metrics.jsonl."""
    cpu_s: float = 0.0
    """CPU seconds of the volunteers, from update 24 to three quarters of the updates."""
    killed_at: int | None = None
    """Version at which a working volunteer was killed."""

    @property
    def reward(self) -> float:
        return statistics.fmean(line["reward"] for line in self.lines[-_REWARDS:])

    @property
    def seconds(self) -> float:
        return float(self.lines[-1]["time"] - self.lines[0]["time"])


def run_live_bench(
    *, updates: int, share: float, on_progress: Callable[[str, float], None] = lambda *_: None
) -> LiveRow:
    """Run both swarms, one after the other, `updates` each; volunteers compute `share` of the time, 0.05 to 1."""
    with tempfile.TemporaryDirectory(prefix="p2prl-live-") as folder:
        everybody = _train(Path(folder) / "everybody", updates, share, on_progress=on_progress)
        resting = _train(Path(folder) / "standby", updates, share, standby=True, on_progress=on_progress)
    pairs = compared(everybody.lines)
    return LiveRow(
        predicted=statistics.fmean(foreseen for foreseen, _ in pairs),
        realised=statistics.fmean(came for _, came in pairs),
        error=statistics.fmean(abs(foreseen - came) / came for foreseen, came in pairs),
        sampler_cpu_of_all_active=resting.cpu_s / everybody.cpu_s,
        updates_an_hour_of_all_active=everybody.seconds / resting.seconds,
        reward_difference=everybody.reward - resting.reward,
        most_on_standby=max(_on_standby(line) for line in resting.lines),
        replaced_after_heads=replaced_after(resting.lines, resting.killed_at),
    )


def compared(lines: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """Forecasts after the 20th update, each with the utilization that was measured 16 updates later."""
    return [
        (before["plan/predicted_utilisation"], after["plan/realised"])
        for before, after in zip(lines, lines[_AHEAD:], strict=False)
        if before["step"] >= _FIRST and "plan/predicted_utilisation" in before and "plan/realised" in after
    ]


def replaced_after(lines: list[dict[str, Any]], killed_at: int | None) -> int | None:
    """Versions from `killed_at` to the first update with fewer on standby than at the death; None if there is none."""
    if killed_at is None:
        return None
    since = [line for line in lines if line["version"] >= killed_at]
    fewer = (line for line in since if _on_standby(line) < _on_standby(since[0]))
    called = next(fewer, None)
    return None if called is None else called["version"] - killed_at


def _on_standby(line: dict[str, Any]) -> int:
    return int(line.get("plan/standby", 0))


def _train(
    folder: Path, updates: int, share: float, *, standby: bool = False, on_progress: Callable[[str, float], None]
) -> _Swarm:
    swarm, measured = SwarmProcesses(folder), _Swarm()
    what = "some on standby" if standby else "everybody at work"
    with swarm.running():
        made = swarm.start("init", "init", "run", "--in", str(folder), "--preset", "arithmetic")
        if made.wait(_START_S) != 0:
            raise AssertionError(f"no run was made:\n{made.log[-2000:]}")
        run = folder / "run"
        (run / "run.toml").write_text(_SETTINGS.format(updates=updates))
        learner = swarm.start("learner", "learn", str(run), *LISTEN)
        link = wait_until(
            lambda: (run / "link").exists() and (run / "link").read_text().strip(), seconds=_START_S, what="a link"
        )
        options = ("--threads", "1", "--slots", "4", "--share", f"{share:g}", *LISTEN)
        volunteers = [
            swarm.start(name, "join", link, *options, *(("--standby-ok",) if standby else ()), home=folder / name)
            for name in (f"volunteer-{number}" for number in range(_VOLUNTEERS))
        ]
        meters = {volunteer.name: _Meter(volunteer) for volunteer in volunteers}
        looks = 0.0
        while learner.is_alive:
            _pause(learner)
            looks += _LOOK_S
            if looks > _PATIENCE_S:
                raise AssertionError(f"{updates} updates were not done:\n{learner.log[-2000:]}")
            measured.lines = _lines(run)
            spent = {name: meter.spent_s() for name, meter in meters.items()}
            if not measured.lines:
                continue
            on_progress(what, len(measured.lines) / updates)
            last = measured.lines[-1]
            if _SETTLED < last["step"] <= _KILLED * updates:
                measured.cpu_s += sum(spent.values())
            if standby and measured.killed_at is None and _on_standby(last) and last["step"] > _KILLED * updates:
                at_work = [each for each in volunteers if spent[each.name] > _WORKING_CPU_S and each.is_alive]
                for volunteer in at_work[:1]:
                    volunteer.process.send_signal(signal.SIGKILL)
                    measured.killed_at = last["version"]
        measured.lines = _lines(run)
    return measured


def _pause(learner: RoleProcess) -> None:
    """Wait until the next look, or until the learner ends."""
    try:
        psutil.Process(learner.process.pid).wait(_LOOK_S)
    except (psutil.TimeoutExpired, psutil.NoSuchProcess):
        return


def _lines(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""  # the newest may be half written
    return [json.loads(line) for line in whole.splitlines()]


class _Meter:
    """CPU seconds of a role's processes, those that have ended included up to the look before."""

    def __init__(self, role: RoleProcess) -> None:
        self._role = role
        self._seen: dict[int, float] = {}

    def spent_s(self) -> float:
        """CPU seconds since the last call."""
        spent = 0.0
        for process in self._role.tree():
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            spent += times.user + times.system - self._seen.get(process.pid, 0.0)
            self._seen[process.pid] = times.user + times.system
        return spent


def as_markdown(row: LiveRow) -> str:
    """The row as a Markdown table."""
    heads = "–" if row.replaced_after_heads is None else str(row.replaced_after_heads)
    figures = {
        "predicted": f"{row.predicted:.2f}",
        "realized": f"{row.realised:.2f}",
        "error": f"{row.error:.0%}",
        "on standby": str(row.most_on_standby),
        "samplers' CPU of all at work": f"{row.sampler_cpu_of_all_active:.2f}",
        "updates an hour of all at work": f"{row.updates_an_hour_of_all_active:.2f}",
        "reward of all at work, less": f"{row.reward_difference:.3f}",
        "called after, versions": heads,
    }
    return f"| {' | '.join(figures)} |\n|{'---:|' * len(figures)}\n| {' | '.join(figures.values())} |\n"
