"""The staleness benchmark in a real swarm: processes, sockets, three volunteers, and delayed groups.

    nice -n 19 python -m p2prl_lab.staleness_swarm --seeds 3 --out runs/staleness-swarm

Each run is `p2prl init`, `p2prl_lab.testing.delayed_learner` and three `p2prl join`, then `p2prl eval` on fresh
prompts, greedy and sampled. A method is a loss with options and, after +lr=, its learning rate. Methods share a seed's
initial weights, and every run has the optimizer of a run. Results go to OUT/results.jsonl, one line per run, so an
interrupted benchmark continues where it stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from p2prl_lab.bench.results.seed_file import Line, SeedFile
from p2prl_lab.progress_lines import say
from p2prl_lab.testing.swarm_processes import LISTEN, SwarmProcesses, command, wait_until

_EVALUATED = 4096
"""Fresh prompts of the final evaluation: a standard error of .007 at a reward of .8."""

_PATIENCE_S = 3600.0
"""Timeout of one process; generous, for a busy machine."""

_PUBLISH_EVERY = 4
"""Updates between versions: weights must reach everyone, and 4 updates matter little next to a delay of 64."""


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a run except its seed."""

    method: str
    delay: str
    updates: int
    learning_rate: float
    volunteers: int


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of one run."""

    seed: int
    greedy: float
    """Mean reward of the last checkpoint's greedy completions, on fresh prompts."""
    sampled: float
    """The same at temperature 1."""
    pass_at_8: float
    entropy: float
    """Of the next-token distribution, over sampled completions, nats."""
    training_reward_last: float
    """Mean reward of the last 20 batches: they were sampled from older policies."""
    staleness_p50: float
    """Staleness in updates, over all groups of the run's second half."""
    staleness_max: float
    gradient_norm_max: float
    weight_max: float
    peers: int
    """Volunteers whose groups were trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One run: its setting, seed and folder."""

    setting: Setting
    seed: int
    folder: Path

    def run(self, first_weights: Path) -> Result:
        """Train with a swarm of processes, evaluate the result, and keep only the metrics."""
        name = f"{self.setting.method.replace(':', '-')}-{self.setting.learning_rate:g}-{self.seed}"
        directory = self.folder / name
        shutil.rmtree(directory, ignore_errors=True)
        swarm = SwarmProcesses(directory)
        options = ("--model", str(first_weights), "--publish-every", str(_PUBLISH_EVERY), "--staleness", "256")
        _succeed(swarm, "init", "run", "--in", str(directory), *options)
        run = directory / "run"
        (run / "run.toml").write_text(self._settings())
        with swarm.running():
            self._train(swarm, run)
        answer = _succeed(
            swarm, "eval", str(run), "--prompts", str(_EVALUATED), "--seed", str(1000 + self.seed), "--json"
        )
        shutil.copy(run / "metrics.jsonl", self.folder / f"{name}.metrics.jsonl")
        (evaluated,) = json.loads(answer)["tasks"].values()
        result = self._result(run / "metrics.jsonl", evaluated)
        shutil.rmtree(directory)
        return result

    def _settings(self) -> str:
        setting = self.setting
        loss, *options = setting.method.split(":")
        return "\n".join(
            (
                'device = "cpu"',
                "threads = 1",
                "[learner]",
                "groups_per_update = 16",
                f"updates = {setting.updates}",
                "checkpoint_every = 20",
                "[learner.optimizer]",
                f"learning_rate = {setting.learning_rate!r}",
                "[loss]",
                f'name = "{loss}"',
                f"options = {{{', '.join(options)}}}",
            )
        )

    def _train(self, swarm: SwarmProcesses, run: Path) -> None:
        learner = swarm.start(
            "learner", str(run), "--delay", self.setting.delay, *LISTEN, module="p2prl_lab.testing.delayed_learner"
        )
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text(), seconds=300, what="a link")
        volunteers = [
            swarm.start(
                name, "join", link.strip(), "--threads", "1", "--slots", "16", *LISTEN, home=swarm.folder / name
            )
            for name in (f"volunteer-{number}" for number in range(self.setting.volunteers))
        ]
        status = learner.wait(_PATIENCE_S)
        if status != 0:
            raise AssertionError(f"the learner exited with {status}:\n{learner.log[-2000:]}")
        for volunteer in volunteers:
            if volunteer.is_alive:
                volunteer.process.send_signal(signal.SIGINT)
        for volunteer in volunteers:
            volunteer.wait(60)

    def _result(self, metrics: Path, evaluated: dict[str, Any]) -> Result:
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        ages = [age for line in lines[len(lines) // 2 :] for age in line["staleness"]]
        return Result(
            seed=self.seed,
            greedy=evaluated["greedy_score"],
            sampled=evaluated["score_mean"],
            pass_at_8=evaluated["pass_at"]["8"]["rate"],
            entropy=evaluated["entropy_per_token"],
            training_reward_last=statistics.fmean(line["reward"] for line in lines[-20:]),
            staleness_p50=statistics.median(ages),
            staleness_max=max(ages),
            gradient_norm_max=max(line["gradient_norm"] for line in lines),
            weight_max=max(line["loss/weight_max"] for line in lines),
            peers=max(line["peers"] for line in lines),
        )


def main() -> int:
    """Run missing cases and print the table; exit 1 when another method is better than the first, see `_is_better`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="topr:sharpness=1,grpo", help="losses, as topr:sharpness=1+lr=0.00025")
    parser.add_argument("--delay", default="const:64", help="delay distribution, as in p2prl bench staleness")
    parser.add_argument("--updates", type=int, default=320, help="learner updates of a run")
    parser.add_argument("--lr", type=float, default=5e-4, help="learning rate of methods that name none")
    parser.add_argument("--volunteers", type=int, default=3, help="volunteer processes")
    parser.add_argument("--seeds", type=int, default=3, help="seeds per method")
    parser.add_argument("--out", type=Path, default=Path("runs/staleness-swarm"), help="folder of results")
    arguments = parser.parse_args()
    settings = [
        Setting(
            method=method,
            delay=arguments.delay,
            updates=arguments.updates,
            learning_rate=float(rate or arguments.lr),
            volunteers=arguments.volunteers,
        )
        for method, _, rate in (text.partition("+lr=") for text in arguments.methods.split(","))
    ]
    out: Path = arguments.out.absolute()
    results = SeedFile(out / "results.jsonl", Line[Setting, Result])
    seeds = range(arguments.seeds)
    for seed in seeds:
        for setting in settings:
            if results.missing(setting, [seed]):
                say(f"{setting.method} under {setting.delay}, seed {seed}")
                result = Plan(setting=setting, seed=seed, folder=out).run(_first_weights(out, seed))
                results.add(setting, [result])
                say(f"  greedy {result.greedy:.3f}, sampled {result.sampled:.3f}, staleness {result.staleness_p50:g}")
    by_method = [results.of(setting, seeds) for setting in settings]
    print(
        "| method | seed | greedy | sampled | pass@8 | entropy | staleness p50 | max | gradient norm max | weight max |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for setting, found in zip(settings, by_method, strict=True):
        for each in found:
            figures = (each.greedy, each.sampled, each.pass_at_8, each.entropy)
            ages = f"{each.staleness_p50:g} | {each.staleness_max:g}"
            print(
                f"| `{setting.method}+lr={setting.learning_rate:g}` | {each.seed} "
                f"| {' | '.join(f'{figure:.3f}' for figure in figures)} | {ages} "
                f"| {each.gradient_norm_max:.2f} | {each.weight_max:.2f} |"
            )
    best, *others = by_method
    better = [
        f"{setting.method} by {measure} reward"
        for setting, found in zip(settings[1:], others, strict=True)
        for measure in ("greedy", "sampled")
        if _is_better(found, best, measure)
    ]
    say("Better than the first method: " + (", ".join(better) or "none"))
    return 1 if better else 0


def _is_better(found: list[Result], first: list[Result], measure: str) -> bool:
    """Whether a method is better than the first by more than two standard errors, paired by seed."""
    gains = [getattr(a, measure) - getattr(b, measure) for a, b in zip(found, first, strict=True)]
    error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0
    return statistics.fmean(gains) > 2 * error


def _first_weights(out: Path, seed: int) -> Path:
    """The seed's initial weights, created once."""
    base = out / f"seed-{seed}"
    if not base.exists():
        _succeed(SwarmProcesses(out), "init", base.name, "--in", str(out), "--seed", str(seed))
    return base / "model"


def _succeed(swarm: SwarmProcesses, *arguments: str) -> str:
    done = command(*arguments, environment=swarm.environment(), timeout_s=_PATIENCE_S)
    if done.returncode != 0:
        raise AssertionError(f"p2prl {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
