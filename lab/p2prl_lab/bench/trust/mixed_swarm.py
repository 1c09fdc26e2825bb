"""Whole swarms with cheats: the trained reward beside a mixed zoo and beside a hundred sybils, with checks and without.

    python -m p2prl_lab.bench.trust.mixed_swarm --json

Learner, volunteers and nodes are the product's own, on virtual time (`p2prl_lab.sim.mixed_swarm`). All runs of one seed
start from the same policy, and their honest volunteers have the same keys and speeds. A sybil is a fresh key that
delivers a few groups and is never seen again; it does valid work, and chooses, or forges. Each finished run is kept
under `--out`, so that a rerun does only what is missing.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from types import MappingProxyType

import msgspec

from p2prl.errors import require
from p2prl.learner.intake.batch_caps import NEWCOMER_PERCENT
from p2prl.learner.journal.journal import Journal
from p2prl.learner.learner_paths import LearnerPaths
from p2prl.models.base_model.pretrained import LoadedModel
from p2prl.models.hardware.device_choice import use_threads
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.small_models.warm_start import WarmstartConfig, warm_start
from p2prl.protocol.identity import Identity
from p2prl.protocol.rollout_group import RolloutGroup
from p2prl.sim.machines import identity_of
from p2prl.sim.swarm_config import SwarmConfig
from p2prl.sim.virtual_time import START
from p2prl.tasks.task_registry import task_by_name
from p2prl_lab.bench.results.result_version import result_version
from p2prl_lab.bench.results.seed_file import Line, SeedFile
from p2prl_lab.bench.trust.floods import Flood, FloodPlan, MakeGroup, honest
from p2prl_lab.bench.trust.floods import fabricated as unsampled
from p2prl_lab.progress_lines import ProgressLines
from p2prl_lab.sim.dishonest_volunteers import CHEATS, FORGED, fabricated, mixed
from p2prl_lab.sim.known_version import KnownVersion, rewards_of
from p2prl_lab.sim.mixed_swarm import MixedSwarm

_TASK = "chain4"

_STEP_S = 20.0
"""Virtual seconds of an update."""

_SAMPLE_S = 48.0
"""Virtual seconds of four slots: ten volunteers fill an update's batch, and a tenth more."""

_SYBILS_BEGIN_S = 200.0
"""Virtual second at which sybils begin: by then the honest volunteers are known."""

_CHOICES = 2
"""Slots of which a sybil delivers one."""

_GROUPS_PER_SYBIL = 7
"""One fewer than make a key known."""

_VERSION = result_version(mixed_swarm=2)
"""Incremented when a change moves the figures."""

_STALL = 4.0
"""A run is given up after this many times the virtual time that its updates take."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedConfig:
    """Size of the benchmark."""

    honest: int = 10
    cheats: int = len(CHEATS)
    """Of all kinds in turn."""
    sybils: int = 100
    updates: int = 200
    first_seed: int = 0
    seeds: int = 3
    sybil_seeds: int = 1
    """Seeds whose runs with sybils are done too."""
    unchecked_seeds: int = 3
    """Seeds whose runs without checks are done too."""
    evaluation_prompts: int = 8_192
    warm_steps: int = 600

    def __post_init__(self) -> None:
        require("honest", self.honest, 1 <= self.honest <= 64, "1 to 64")
        require("cheats", self.cheats, 1 <= self.cheats <= 64, "1 to 64")
        require("sybils", self.sybils, 1 <= self.sybils <= 1_000, "1 to 1,000")
        require("updates", self.updates, 1 <= self.updates <= 10_000, "1 to 10,000")
        require("seeds", self.seeds, 1 <= self.seeds <= 64, "1 to 64")
        require("sybil_seeds", self.sybil_seeds, 0 <= self.sybil_seeds <= self.seeds, "0 to seeds")
        require("unchecked_seeds", self.unchecked_seeds, 0 <= self.unchecked_seeds <= 64, "0 to 64")


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a run except its seed."""

    scenario: str
    checks: bool
    honest: int
    cheats: int
    sybils: int
    updates: int
    evaluation_prompts: int
    warm_steps: int
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedRow:
    """One run. Many fields, because each is a column of the report."""

    scenario: str
    """A key of `SCENARIOS`."""
    seed: int
    honest: int
    cheats: int
    """Dishonest volunteers, or sybils."""
    checks: bool
    updates: int
    """Updates done; fewer than asked for when the run stalled."""
    final_reward: float
    reward_of_all_honest: float
    """Of the same seed, with honest volunteers in the cheats' places."""
    forged_trained_on: int
    """Groups trained on that are not the draw of their slot."""
    influence_of_cheats: float
    """Of the groups trained on, those of cheats or sybils; while sybils deliver."""
    influence_of_sybils: float
    cap: float
    """Most influence that all newcomers together may have while others can fill the batches."""
    honest_faulted: int
    """Groups of honest volunteers rejected for something that counts against them."""
    cheats_credited: int
    staleness: float
    """Median over the groups trained on, in updates."""
    virtual_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """Who takes part beside the honest volunteers."""

    cheats: bool = False
    sybils: MakeGroup | None = None


def _chosen(target: KnownVersion, key: Identity, slot: int, rng: random.Random) -> RolloutGroup:
    """Valid work, the group with the highest rewards of a few slots: those teach least."""
    slots = range(_CHOICES * slot, _CHOICES * (slot + 1))
    return max((honest(target, key, each, rng) for each in slots), key=rewards_of)


def _forged(target: KnownVersion, key: Identity, slot: int, rng: random.Random) -> RolloutGroup:
    """Tokens out of nothing in a group that is otherwise right."""
    return fabricated(unsampled(target, key, slot, rng), rng)


SCENARIOS: Mapping[str, Scenario] = MappingProxyType(
    {
        "all honest": Scenario(),
        "mixed cheats": Scenario(cheats=True),
        "sybils that choose": Scenario(sybils=_chosen),
        "sybils that forge": Scenario(sybils=_forged),
    }
)
"""Name → who takes part."""


def run_mixed(config: MixedConfig, out: Path, *, on_progress: Callable[[str, float], None]) -> Iterator[MixedRow]:
    """One row for each run: all honest first, then each kind of cheats with checks and without, seed by seed.

    Finished runs are kept under `out`.
    """
    file = SeedFile(out / "mixed_swarm.jsonl", Line[Setting, MixedRow])
    for seed in range(config.first_seed, config.first_seed + config.seeds):
        warm: LoadedModel | None = None
        reference: float | None = None
        number = seed - config.first_seed
        for name, checks in _cases(with_sybils=number < config.sybil_seeds, unchecked=number < config.unchecked_seeds):
            setting = _setting(config, name, checks)
            if file.missing(setting, [seed]):
                warm = warm or _warm_policy(seed, config.warm_steps)
                file.add(setting, [_row(config, warm, name, seed, checks, reference, on_progress)])
            (row,) = file.of(setting, [seed])
            reference = row.final_reward if reference is None else reference
            yield row


def _cases(*, with_sybils: bool, unchecked: bool) -> Iterator[tuple[str, bool]]:
    """(scenario, checks) of the runs of a seed; all honest is the first."""
    for name, scenario in SCENARIOS.items():
        if scenario.sybils is None or with_sybils:
            yield name, True
        if unchecked and (scenario.cheats or (scenario.sybils is not None and with_sybils)):
            yield name, False


def _setting(config: MixedConfig, name: str, checks: bool) -> Setting:
    return Setting(
        scenario=name,
        checks=checks,
        honest=config.honest,
        cheats=config.cheats,
        sybils=config.sybils,
        updates=config.updates,
        evaluation_prompts=config.evaluation_prompts,
        warm_steps=config.warm_steps,
        version=_VERSION,
    )


def _warm_policy(seed: int, steps: int) -> LoadedModel:
    loaded = tiny_model(_TASK, seed=seed)
    demonstration = task_by_name(_TASK).demonstration
    assert demonstration is not None
    warm_start(loaded, demonstration, seed=seed, config=WarmstartConfig(steps=steps))
    return loaded


def _row(
    config: MixedConfig,
    warm: LoadedModel,
    name: str,
    seed: int,
    checks: bool,
    reference: float | None,
    on_progress: Callable[[str, float], None],
) -> MixedRow:
    scenario = SCENARIOS[name]
    others = config.cheats if scenario.cheats or scenario.sybils is None else 0
    loaded = LoadedModel(model=copy.deepcopy(warm.model), tokenizer=warm.tokenizer)
    swarm_config = SwarmConfig(
        task=_TASK,
        volunteers=config.honest + others,
        updates=config.updates,
        step_seconds=_STEP_S,
        sample_seconds=_SAMPLE_S,
        max_virtual_s=_STALL * _STEP_S * config.updates + _SYBILS_BEGIN_S,
        publish_every=4,
        seed=seed,
    )
    with tempfile.TemporaryDirectory(prefix="p2prl-mixed-") as folder:
        directory = Path(folder)
        cheats = mixed(config.cheats) if scenario.cheats else ()
        swarm = MixedSwarm(swarm_config, loaded, directory, cheats=cheats, checks=checks)
        sybils: set[bytes] = set()
        plan = None if scenario.sybils is None else _sybil_plan(config, seed)
        if plan is not None and scenario.sybils is not None:
            sybils = {identity_of(f"flood {seed}/{number}").public_key for number in range(plan.keys)}
            Flood(swarm, plan, scenario.sybils, directory / "sybils").start()
        gc.freeze()  # rescanning these long-lived objects took a sixth of the time
        result = swarm.run(on_progress=partial(on_progress, f"{name}, checks {'on' if checks else 'off'}, seed {seed}"))
        reward = swarm.simulated.reward_now(config.evaluation_prompts)
        trained, faulted, credited = _history(directory)
    forging = {key for key, kind in swarm.kinds.items() if kind in FORGED}
    cheating = {key for key, kind in swarm.kinds.items() if kind} | sybils
    if scenario.sybils is _forged:
        forging |= sybils
    during = [peer for at, peer in trained if plan is None or 0.0 <= at - plan.begins_s < plan.lasts_s]
    return MixedRow(
        scenario=name,
        seed=seed,
        honest=swarm_config.volunteers - len(cheats),
        cheats=len(cheats) + len(sybils),
        checks=checks,
        updates=result.updates,
        final_reward=round(reward, 4),
        reward_of_all_honest=round(reward if reference is None else reference, 4),
        forged_trained_on=sum(peer in forging for _, peer in trained),
        influence_of_cheats=_share(during, cheating),
        influence_of_sybils=_share(during, sybils),
        cap=NEWCOMER_PERCENT / 100,
        honest_faulted=sum(count for peer, count in faulted.items() if peer not in cheating),
        cheats_credited=sum(count for peer, count in credited.items() if peer in cheating),
        staleness=result.staleness[0],
        virtual_s=round(result.virtual_s),
    )


def _sybil_plan(config: MixedConfig, seed: int) -> FloodPlan:
    """Sybils in half of the run's updates."""
    lasts_s = max(60.0, _STEP_S * config.updates / 2)
    return FloodPlan(
        keys=config.sybils, groups_per_key=_GROUPS_PER_SYBIL, begins_s=_SYBILS_BEGIN_S, lasts_s=lasts_s, seed=seed
    )


def _history(directory: Path) -> tuple[list[tuple[float, bytes]], dict[bytes, int], dict[bytes, int]]:
    """(virtual second, peer) of each group trained on, and the groups faulted and credited of each peer."""
    paths = LearnerPaths(directory / "learner")
    journal, trained = Journal(paths.journal), []
    for line in paths.metrics.read_text().splitlines() if paths.metrics.exists() else ():
        update = json.loads(line)
        digests = journal.batches.at_step(int(update["step"]) - 1) or []
        trained += [(update["time"] - START, group.peer) for group in journal.groups.by_digest(digests)]
    faulted: dict[bytes, int] = {}
    credited: dict[bytes, int] = {}
    for peer, _, passed, failed in journal.groups.history():
        faulted[peer] = faulted.get(peer, 0) + failed
        credited[peer] = credited.get(peer, 0) + passed
    journal.close()
    return trained, faulted, credited


def _share(peers: Sequence[bytes], of: set[bytes]) -> float:
    return round(sum(peer in of for peer in peers) / max(1, len(peers)), 4)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixedSummary:
    """The runs of one scenario, over the seeds."""

    scenario: str
    checks: bool
    seeds: int
    final_reward: float
    difference: float
    """From all honest, mean over the seeds."""
    standard_error: float
    """Of the difference; 0 with one seed."""
    forged_trained_on: int
    influence: float
    """Highest of all seeds."""
    honest_faulted: int


def summarize(rows: Sequence[MixedRow]) -> list[MixedSummary]:
    """One row for each scenario, with checks and without."""
    cases: dict[tuple[str, bool], list[MixedRow]] = {}
    for row in rows:
        cases.setdefault((row.scenario, row.checks), []).append(row)
    return [_summary(name, checks, mine) for (name, checks), mine in cases.items()]


def _summary(name: str, checks: bool, rows: Sequence[MixedRow]) -> MixedSummary:
    differences = [row.final_reward - row.reward_of_all_honest for row in rows]
    spread = statistics.stdev(differences) / len(rows) ** 0.5 if len(rows) > 1 else 0.0
    return MixedSummary(
        scenario=name,
        checks=checks,
        seeds=len(rows),
        final_reward=round(statistics.mean(row.final_reward for row in rows), 4),
        difference=round(statistics.mean(differences), 4),
        standard_error=round(spread, 4),
        forged_trained_on=sum(row.forged_trained_on for row in rows),
        influence=max(row.influence_of_cheats for row in rows),
        honest_faulted=sum(row.honest_faulted for row in rows),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print all rows, as one JSON object or as lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, default=Path("runs/bench-mixed-swarm"), help="folder of the finished runs")
    for field in fields(MixedConfig):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    given = vars(parser.parse_args(arguments))
    as_json, out = given.pop("json"), given.pop("out")
    use_threads(1)  # a fixed order of summation keeps the figures reproducible
    began, rows, shown = time.monotonic(), [], ProgressLines()
    for row in run_mixed(MixedConfig(**given), out, on_progress=lambda text, share: shown.show(f"{text}: {share:.0%}")):
        rows.append(row)
        shown.line(" ".join(f"{key}={value}" for key, value in asdict(row).items()))
    summary = [asdict(each) for each in summarize(rows)]
    if as_json:
        document = {"mixed_swarm": [asdict(row) for row in rows], "summary": summary}
        sys.stdout.write(json.dumps(document | {"wall_s": round(time.monotonic() - began)}) + "\n")
        return
    for each in summary:
        sys.stdout.write(" ".join(f"{key}={value}" for key, value in each.items()) + "\n")


if __name__ == "__main__":
    main()
