"""The price of a swarm: processor seconds to a reward, of TRL's trainer alone and of swarms on the same machine.

All train the same new run: model, prompts, rewards, completions an update, learning rate. A swarm's learner and
volunteers are the real commands over real sockets. Where time goes is told by thread (`thread_cpu.py`) and by process.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from p2prl.errors import ConfigError
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, wait_until
from p2prl_lab.thread_cpu import FILE

ALONE = "TRL alone"

_PROCESSES = {"p2prl.net.process": "network process", "p2pd": "daemon", "p2prl.models.tokenizer": "tokenizer process"}
"""What a child of a role is called, by a part of its command line."""

_LAST = 8
"""Updates whose mean reward is held against the target."""
_LOOK_S = 0.5
_START_S = 900.0
_HANGS_S = 3600.0

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceRow:
    """What one of them took to reach the reward."""

    model: str
    who: str
    updates: int
    reward: float
    """Mean reward of the completions of the last eight updates: sampled, not greedy."""
    reached: bool
    """Whether that is the wanted reward, or the updates ended before."""
    cpu_s: float
    """Processor seconds of all its processes from their first update on."""
    start_cpu_s: float
    """Before that: imports, loading, the first groups."""
    of_trl: float | None
    """`cpu_s` over that of TRL alone; None where either did not reach the reward."""
    parts: dict[str, float]
    """Of `cpu_s`, by role and thread or process."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceConfig:
    """What is measured."""

    presets: Sequence[str]
    volunteers: Sequence[int]
    target: float
    updates: int
    """Most updates."""
    seed: int = 0


@dataclass(slots=True)
class Spent:
    """Processor seconds by part, as last seen; what was spent before the first update is taken off at the end."""

    now: dict[str, float] = field(default_factory=dict)
    at_first: dict[str, float] | None = None

    def parts(self) -> dict[str, float]:
        first = self.at_first or {}
        found = {part: seconds - first.get(part, 0.0) for part, seconds in sorted(self.now.items())}
        return {part: round(seconds, 3) for part, seconds in found.items() if seconds >= 0.005}

    @property
    def start_s(self) -> float:
        return sum((self.at_first or {}).values())


def run_price_bench(config: PriceConfig, on_progress: OnProgress) -> Iterator[PriceRow]:
    """Measure TRL alone, then a swarm of each number of volunteers, for each preset."""
    for preset in config.presets:
        with tempfile.TemporaryDirectory(prefix="p2prl-price-") as scratch:
            folder, alone = Path(scratch), None
            made = _new_run(SwarmProcesses(folder / "new"), preset, config)
            for volunteers in (0, *config.volunteers):
                swarm = SwarmProcesses(folder / f"with-{volunteers}")
                with swarm.running():
                    run = Path(shutil.copytree(made, swarm.folder / "run"))
                    if volunteers == 0:
                        row = _alone(swarm, run, preset, config, on_progress)
                        alone = row.cpu_s if row.reached else None
                    else:
                        row = _swarm(swarm, run, preset, volunteers, config, alone, on_progress)
                yield row


def _new_run(swarm: SwarmProcesses, preset: str, config: PriceConfig) -> Path:
    """A run folder, which all train a copy of."""
    set_ = ("--set", f"learner.updates={config.updates}", "--seed", str(config.seed))
    made = swarm.start("init", "init", "run", "--in", str(swarm.folder), "--preset", preset, *set_)
    if made.wait(_START_S) != 0:
        raise ConfigError(f"no run of preset {preset} could be made", remedy=made.log[-2000:])
    return swarm.folder / "run"


def _alone(swarm: SwarmProcesses, run: Path, preset: str, config: PriceConfig, on_progress: OnProgress) -> PriceRow:
    arguments = (str(run), "--updates", str(config.updates), "--seed", str(config.seed))
    trainer = swarm.start("trl", *arguments, module="p2prl_lab.trl_alone")
    lines: list[dict[str, float]] = []

    def enough() -> bool:
        lines[:] = [json.loads(line) for line in trainer.log.splitlines() if line.startswith('{"step"')]
        on_progress(f"{preset}, {ALONE}", len(lines) / config.updates)
        return not trainer.is_alive or reward_of([line["reward"] for line in lines]) >= config.target

    wait_until(enough, seconds=_HANGS_S, what=f"{config.updates} updates of TRL")
    if not lines:
        raise ConfigError(
            "TRL trained nothing", remedy=f"See lab/p2prl_lab/trl_alone.py. It said: {trainer.log[-800:]}"
        )
    took = reached_at([line["reward"] for line in lines], config.target)
    cpu_s = lines[took - 1]["cpu_s"] - lines[0]["cpu_s"]
    reward = reward_of([line["reward"] for line in lines[:took]])
    return PriceRow(
        model=preset,
        who=ALONE,
        updates=took,
        reward=reward,
        reached=reward >= config.target,
        cpu_s=cpu_s,
        start_cpu_s=lines[0]["cpu_s"],
        of_trl=1.0 if reward >= config.target else None,
        parts={"one process": round(cpu_s, 3)},
    )


def _swarm(
    swarm: SwarmProcesses,
    run: Path,
    preset: str,
    volunteers: int,
    config: PriceConfig,
    alone: float | None,
    on_progress: OnProgress,
) -> PriceRow:
    def start(name: str, *arguments: str) -> RoleProcess:
        variables = {FILE: str(swarm.folder / f"{name}.json")}
        home = swarm.folder / name
        return swarm.start(name, *arguments, *LISTEN, home=home, module="p2prl_lab.thread_cpu", variables=variables)

    learner = start("learner", "learn", str(run))
    link = wait_until(
        lambda: (run / "link").exists() and (run / "link").read_text().strip(), seconds=_START_S, what="a link"
    )
    roles = [learner, *(start(f"volunteer-{number}", "join", link, "--threads", "1") for number in range(volunteers))]
    spent, rewards = Spent(), list[float]()

    def enough() -> bool:
        rewards[:] = [line["reward"] for line in _lines(run)]
        _look(spent, roles, swarm.folder)
        if rewards and spent.at_first is None:
            spent.at_first = dict(spent.now)
        on_progress(f"{preset}, {volunteers} volunteers", len(rewards) / config.updates)
        return not learner.is_alive or reward_of(rewards) >= config.target

    began = time.monotonic()
    while not enough():
        if time.monotonic() - began > _HANGS_S:
            raise ConfigError("the swarm did not end", remedy=learner.log[-2000:])
        time.sleep(_LOOK_S)
    if not rewards:
        raise ConfigError("the swarm trained nothing", remedy=f"Its learner said: {learner.log[-800:]}")
    parts = spent.parts()
    cpu_s, reached = sum(parts.values()), reward_of(rewards) >= config.target
    return PriceRow(
        model=preset,
        who="1 volunteer" if volunteers == 1 else f"{volunteers} volunteers",
        updates=len(rewards),
        reward=reward_of(rewards),
        reached=reached,
        cpu_s=cpu_s,
        start_cpu_s=spent.start_s,
        of_trl=cpu_s / alone if alone and reached else None,
        parts=parts,
    )


def _look(spent: Spent, roles: Sequence[RoleProcess], folder: Path) -> None:
    """Read the processor seconds of every process and thread; what has ended keeps what it had."""
    seen: defaultdict[str, float] = defaultdict(float)
    for role in roles:
        kind = role.name.partition("-")[0]
        threads = folder / f"{role.name}.json"
        for name, seconds in (json.loads(threads.read_text()) if threads.exists() else {}).items():
            seen[f"{kind}: {name}"] += seconds
        for process in role.tree()[1:]:
            try:
                times, command = process.cpu_times(), " ".join(process.cmdline())
            except psutil.Error:
                continue
            what = next((name for sign, name in _PROCESSES.items() if sign in command), "other processes")
            seen[f"{kind}: {what}"] += times.user + times.system
    for part, seconds in seen.items():
        spent.now[part] = max(seconds, spent.now.get(part, 0.0))


def _lines(run: Path) -> list[dict[str, Any]]:
    path = run / "metrics.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""  # the newest may be half written
    return [json.loads(line) for line in whole.splitlines()]


def reward_of(rewards: Sequence[float]) -> float:
    """Mean of the last eight updates; 0 before there are eight."""
    return statistics.fmean(rewards[-_LAST:]) if len(rewards) >= _LAST else 0.0


def reached_at(rewards: Sequence[float], target: float) -> int:
    """Updates after which the last eight first had the reward; all of them if they never had."""
    counts = range(_LAST, len(rewards) + 1)
    return next((count for count in counts if reward_of(rewards[:count]) >= target), len(rewards))


def as_markdown(rows: Sequence[PriceRow]) -> str:
    """Two tables: what it took, and where it went."""
    head = "| model | who | updates | reward | processor s | to start | of TRL |\n|---|---|--:|--:|--:|--:|--:|\n"
    table = "".join(
        f"| {row.model} | {row.who} | {row.updates} | {row.reward:.3f} | {row.cpu_s:.1f} | {row.start_cpu_s:.1f} | "
        f"{'–' if row.of_trl is None else f'{row.of_trl:.2f}'} |\n"
        for row in rows
    )
    parts = "| model | who | part | processor s | share |\n|---|---|---|--:|--:|\n" + "".join(
        f"| {row.model} | {row.who} | {part} | {seconds:.2f} | {seconds / row.cpu_s:.0%} |\n"
        for row in rows
        for part, seconds in sorted(row.parts.items(), key=lambda item: -item[1])
        if row.who != ALONE
    )
    return f"{head}{table}\n{parts}"
