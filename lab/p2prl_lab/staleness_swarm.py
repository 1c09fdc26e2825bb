"""Losses under delay in a real swarm, while skills arrive: processes, sockets, volunteers, and delayed groups.

    nice -n 19 python -m p2prl_lab.staleness_swarm --seeds 3 --out runs/staleness-swarm

The skills of `rows8` are six data tasks here. Volunteers sample all of them; the learner takes one more of them every
--period updates, and the delay passes before it trains on a group. Each run is `p2prl init`,
`p2prl_lab.testing.delayed_learner` and `p2prl join` for each volunteer; the learner measures a version every 16 updates
on held-out rows of the skills that it has trained on. A method is a loss with options and, after +lr=, its learning
rate. Methods share a seed's warm start, and every run has the optimizer of a run. Results go to OUT/results.jsonl, one
line per run, so an interrupted benchmark continues where it stopped. The last two columns compare each method with the
first, by seed.
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

import msgspec
import numpy as np

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.models.small_models.warm_start import warm_start
from p2prl.tasks.task_registry import TASKS
from p2prl_lab.bench.results.seed_file import Line, SeedFile
from p2prl_lab.bench.staleness.paired import paired
from p2prl_lab.bench.staleness.staleness_distributions import parse_staleness
from p2prl_lab.bench.training.letter_chains import EASY, NEW, ROWS8, LetterChain, training_rows, written
from p2prl_lab.bench.training.split4 import FIRST_TEST_SEED
from p2prl_lab.progress_lines import say
from p2prl_lab.testing.delayed_buffer import TaskArrival
from p2prl_lab.testing.swarm_processes import LISTEN, SwarmProcesses, command, wait_until

_PATIENCE_S = 3600.0
"""Timeout of one process; generous, for a busy machine."""

_PUBLISH_EVERY = 4
"""Updates between versions: weights must reach everyone, and 4 updates matter little next to a delay of 64."""

_GROUPS_PER_UPDATE = 16

_EVALUATE_EVERY = 16
"""Updates between evaluations: two in each phase of 32."""

_HELD_OUT = 128
"""Rows of each skill that are never trained on."""


class Setting(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything about a run except its seed."""

    method: str
    delay: str
    period: int
    updates: int
    learning_rate: float
    volunteers: int


class Point(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One evaluation: means over the skills of which the learner has had groups."""

    update: int
    greedy: float
    pass_at_8: float


class Result(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of one run."""

    seed: int
    curve: tuple[Point, ...]
    kl: float
    """Nats a token between sampler and learner: mean over the updates from the delay on."""
    staleness_p50: float
    """Staleness in updates, over all groups of the run's second half."""
    staleness_max: float
    peers: int
    """Volunteers whose groups were trained on."""

    def area(self, start: int) -> float:
        """Mean height of greedy reward from update `start` on."""
        updates = [point.update for point in self.curve]
        grid = np.arange(start, updates[-1] + 1)
        heights = np.interp(grid, updates, [point.greedy for point in self.curve])
        return float(np.trapezoid(heights, grid) / (grid[-1] - grid[0]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One run: its setting, seed and folder."""

    setting: Setting
    seed: int
    folder: Path

    def run(self, first_weights: Path) -> Result:
        """Train with a swarm of processes, and keep only the figures."""
        directory = self.folder / f"{self.setting.method.replace(':', '-')}-{self.setting.learning_rate:g}-{self.seed}"
        shutil.rmtree(directory, ignore_errors=True)
        swarm = SwarmProcesses(directory)
        _succeed(swarm, "init", "run", "--in", str(directory), *self._options(first_weights, directory))
        run = directory / "run"
        (run / "run.toml").write_text(self._settings())
        with swarm.running():
            self._train(swarm, run)
        result = self._result(run)
        shutil.rmtree(directory)
        return result

    def _options(self, first_weights: Path, directory: Path) -> list[str]:
        options = ["--model", str(first_weights), "--probe", "off", "--chat-template", "off", "--scorer", "exact"]
        options += ["--max-new-tokens", str(ROWS8.spec.max_new_tokens)]
        options += ["--publish-every", str(_PUBLISH_EVERY), "--staleness", "256"]
        for skill in NEW:
            rows, held_out = write_rows(skill, directory)
            options += ["--data", f"{skill}={rows}", "--eval", f"{skill}={held_out}"]
        return options

    def _settings(self) -> str:
        setting = self.setting
        loss, *options = setting.method.split(":")
        return "\n".join(
            (
                'device = "cpu"',
                "threads = 1",
                "[learner]",
                f"groups_per_update = {_GROUPS_PER_UPDATE}",
                f"updates = {setting.updates}",
                "[learner.optimizer]",
                f"learning_rate = {setting.learning_rate!r}",
                "[loss]",
                f'name = "{loss}"',
                f"options = {{{', '.join(options)}}}",
                "[evaluation]",
                f"every = {_EVALUATE_EVERY // _PUBLISH_EVERY}",
                "always = true",
                f"prompts = {_HELD_OUT}",
                "samples = 8",
            )
        )

    def _train(self, swarm: SwarmProcesses, run: Path) -> None:
        arrive = f"{','.join(NEW)}:{self.setting.period}"
        options = ("--delay", self.setting.delay, "--arrive", arrive)
        module = "p2prl_lab.testing.delayed_learner"
        learner = swarm.start("learner", str(run), *options, *LISTEN, module=module)
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

    def _result(self, run: Path) -> Result:
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        measured = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
        arrival, start = TaskArrival(tuple(NEW), self.setting.period), _start(self.setting.delay)
        ages = [age for line in lines[len(lines) // 2 :] for age in line["staleness"]]
        return Result(
            seed=self.seed,
            curve=tuple(
                Point(
                    update=each["step"],
                    greedy=statistics.fmean(each["tasks"][task]["greedy_pass"]["rate"] for task in asked),
                    pass_at_8=statistics.fmean(each["tasks"][task]["pass_at"]["8"]["rate"] for task in asked),
                )
                for each in measured
                for asked in (arrival.asked(max(0, each["step"] - 1 - start)),)  # what the update before it trained on
            ),
            kl=statistics.fmean(line["kl_behavior_per_token"] for line in lines[start:]),
            staleness_p50=statistics.median(ages),
            staleness_max=max(ages),
            peers=max(line["peers"] for line in lines),
        )


def write_rows(skill: str, directory: Path) -> tuple[Path, Path]:
    """Files of a skill's rows to train on and to hold out, which share no prompt."""
    (form,) = {phase.form for phase in ROWS8.phases}
    chain = LetterChain(form, skill)
    held_out = dict.fromkeys(chain.prompt(FIRST_TEST_SEED + (number << 8)) for number in range(_HELD_OUT))
    directory.mkdir(parents=True, exist_ok=True)
    paths = directory / f"{skill}.jsonl", directory / f"{skill}-held-out.jsonl"
    for path, prompts in zip(paths, (training_rows(form, skill), held_out), strict=True):
        rows = ({"prompt": prompt, "answer": written(form, prompt, {**EASY, **NEW})} for prompt in prompts)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return paths


def main() -> int:
    """Run what is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="topr:sharpness=1,grpo", help="losses, as topr:sharpness=1+lr=0.00025")
    parser.add_argument("--delay", default="const:64", help="delay distribution, as in p2prl bench staleness")
    parser.add_argument("--period", type=int, default=32, help="updates between the arrivals of two skills")
    parser.add_argument("--updates", type=int, default=256, help="learner updates of a run")
    parser.add_argument("--lr", type=float, default=5e-4, help="learning rate of methods that name none")
    parser.add_argument("--volunteers", type=int, default=3, help="volunteer processes")
    parser.add_argument("--seeds", type=int, default=3, help="seeds per method")
    parser.add_argument("--seed", type=int, default=30, help="the first seed")
    parser.add_argument("--out", type=Path, default=Path("runs/staleness-swarm"), help="folder of results")
    arguments = parser.parse_args()
    settings = [
        Setting(
            method=method,
            delay=arguments.delay,
            period=arguments.period,
            updates=arguments.updates,
            learning_rate=float(rate or arguments.lr),
            volunteers=arguments.volunteers,
        )
        for method, _, rate in (text.partition("+lr=") for text in arguments.methods.split(","))
    ]
    out: Path = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    results = SeedFile(out / "results.jsonl", Line[Setting, Result])
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    for seed in seeds:
        for setting in settings:
            if results.missing(setting, [seed]):
                say(f"{setting.method} under {setting.delay}, seed {seed}")
                result = Plan(setting=setting, seed=seed, folder=out).run(_first_weights(out, seed))
                results.add(setting, [result])
                say(f"  area {result.area(_start(setting.delay)):.3f}, staleness {result.staleness_p50:g}")
    print(table([(setting, results.of(setting, seeds)) for setting in settings]))
    return 0


def table(found: list[tuple[Setting, list[Result]]]) -> str:
    """All runs, and each method's difference from the first in area, points of 100, mean and p (paired by seed)."""
    lines = [
        "| method | seed | area | end | pass@8 | KL | staleness p50 | max | first minus it | p |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    first: list[float] = []
    for setting, results in found:
        areas = [result.area(_start(setting.delay)) for result in results]
        first = first or areas
        ahead = paired(first, areas) if areas != first and len(areas) > 1 else None
        for result, area in zip(results, areas, strict=True):
            end, tries = (
                statistics.fmean(getattr(point, name) for point in result.curve[-3:])
                for name in ("greedy", "pass_at_8")
            )
            last = ahead is not None and result is results[-1]
            compared = f"{100 * ahead.difference:.1f} | {ahead.p:.3g}" if last and ahead is not None else "|"
            lines.append(
                f"| `{setting.method}+lr={setting.learning_rate:g}` | {result.seed} | {area:.3f} | {end:.3f} "
                f"| {tries:.3f} | {result.kl:.3f} | {result.staleness_p50:g} | {result.staleness_max:g} | {compared} |"
            )
    return "\n".join(lines)


def _start(delay: str) -> int:
    """The update from which on a constant delay has its full age."""
    return parse_staleness(delay).longest


def _first_weights(out: Path, seed: int) -> Path:
    """The seed's warm start, made once."""
    made = out / f"warm-{seed}"
    if not made.exists():
        assert ROWS8.spec.demonstration is not None
        TASKS.offer(ROWS8.spec.name, ROWS8.spec, origin="benchmark")
        loaded = tiny_model(ROWS8.spec.name, seed=seed)
        say(f"warm start of seed {seed}")
        warm_start(loaded, ROWS8.spec.demonstration, seed=seed)
        part = out / f"warm-{seed}.part"
        loaded.model.save_pretrained(part, safe_serialization=True)
        loaded.tokenizer.save_pretrained(part)
        part.rename(made)
    return made


def _succeed(swarm: SwarmProcesses, *arguments: str) -> str:
    done = command(*arguments, environment=swarm.environment(), timeout_s=_PATIENCE_S)
    if done.returncode != 0:
        raise AssertionError(f"p2prl {' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
