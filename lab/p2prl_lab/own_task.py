"""A researcher's own task from nothing: data, model, `init`, `learn`, two `join`; does held-out accuracy rise in time?

    python -m p2prl_lab.own_task                         # 2,000 word problems in GSM8K's shape, --scorer number
    python -m p2prl_lab.own_task --reward-file           # the same with a reward function in a Python file
    python -m p2prl_lab.own_task --reasoning             # a mix of reasoning-gym datasets (extra `reasoning-gym`)
    python -m p2prl_lab.own_task --lora 16               # the first with adapters of rank 16 alone

Runs the real commands on loopback, as separate processes. Prints JSON: seconds until the first verified group, greedy
accuracy on held-out rows before and after, and the run's figures. Exits 1 unless the first group was verified within
`--first-within` seconds and accuracy rose by `--gain` within `--minutes`. `--model` takes a model made before by
scripts/make_small_model.py, which otherwise takes one to two minutes more.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from p2prl_lab.progress_lines import say
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, status_of, wait_until

_ROOT = Path(__file__).resolve().parents[2]
_JOINS = 2

_REWARD_FILE = '''\
"""Rewards of the run: full marks for the right answer, a little for one in the right form."""


def right_answer(prompts, completions, answer, **columns):
    """1 for the number after the last ####, .1 for another number there."""
    rewards = []
    for completion, solution in zip(completions, answer):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        given, wanted = (each.rpartition("####")[2].strip() for each in (text, solution))
        form = "####" in text and given.lstrip("-").isdigit()
        rewards.append(1.0 if form and given == wanted else 0.1 if form else 0.0)
    return rewards
'''


@dataclass(frozen=True, slots=True)
class Task:
    """Files of the task, and how it is scored."""

    train: Path
    held_out: Path
    scorer: str
    preset: str


def main() -> int:
    """Run it, and print the report."""
    arguments = _arguments()
    folder: Path = arguments.out or Path(tempfile.mkdtemp(prefix="own-task-"))
    folder.mkdir(parents=True, exist_ok=True)
    task = _task(folder, arguments)
    model = arguments.model or folder / "model"
    if not model.exists():
        say("making the model")
        _script("make_small_model.py", str(model), "--preset", task.preset, "--seed", str(arguments.seed))
    swarm = SwarmProcesses(folder)
    with swarm.running():
        report = _run(swarm, folder, model, task, arguments)
    print(json.dumps(report, indent=2, sort_keys=True))
    say(f"Kept in {folder}")
    return 0 if report["passed"] else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--reward-file", action="store_true", help="score with a Python file instead of `number`")
    kind.add_argument("--reasoning", action="store_true", help="train on a mix of reasoning-gym datasets")
    parser.add_argument("--lora", type=int, default=0, help="train adapters of this rank; 0 trains all weights")
    parser.add_argument("--rows", type=int, default=2000, help="word problems to train on")
    parser.add_argument("--held-out", type=int, default=256, help="rows to evaluate on")
    parser.add_argument("--minutes", type=float, default=20.0, help="longest run, from the start of the learner")
    parser.add_argument("--updates", type=int, default=0, help="end the run after this many updates; 0 for no such end")
    parser.add_argument("--gain", type=float, default=0.2, help="rise of greedy accuracy that counts as success")
    parser.add_argument("--first-within", type=float, default=120.0, help="seconds until the first verified group")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, default=None, help="directory of a model made before")
    parser.add_argument("--out", type=Path, default=None, help="folder of the run, its data, logs and model")
    return parser.parse_args()


def _task(folder: Path, arguments: argparse.Namespace) -> Task:
    train, held_out = folder / "train.jsonl", folder / "held_out.jsonl"
    if arguments.reasoning:
        from p2prl.config.preset_materials import materials

        materials("reasoning", folder, seed=arguments.seed, on_progress=lambda *_: None)
        return Task(train, held_out, "reasoning-gym", "reasoning")
    seed = ("--seed", str(arguments.seed))
    _script("make_word_problems.py", str(train), "--rows", str(arguments.rows), *seed)
    skip = ("--skip", str(arguments.rows))
    _script("make_word_problems.py", str(held_out), "--rows", str(arguments.held_out), *skip, *seed)
    scorer = "number"
    if arguments.reward_file:
        rewards = folder / "rewards.py"
        rewards.write_text(_REWARD_FILE)
        scorer = f"{rewards}:right_answer"
    return Task(train, held_out, scorer, "arithmetic")


def _run(swarm: SwarmProcesses, folder: Path, model: Path, task: Task, arguments: argparse.Namespace) -> dict[str, Any]:
    environment = swarm.environment()
    data = ("--data", f"own={task.train}", "--eval", f"own={task.held_out}", "--scorer", task.scorer)
    began = time.monotonic()
    made = command(
        *("init", "own", "--in", str(folder), "--preset", task.preset, "--model", str(model), *data),
        *("--lora", str(arguments.lora)),
        environment=environment,
        timeout_s=900,
    )
    assert made.returncode == 0, made.stderr
    say(made.stdout + made.stderr)
    run = folder / "own"
    say("measuring the model")
    before = _accuracy(run, run / "model", arguments, environment)
    init_s, began = time.monotonic() - began, time.monotonic()
    updates = ("--updates", str(arguments.updates))
    learner = swarm.start("learner", "learn", str(run), *LISTEN, *updates)
    link = wait_until(lambda: _link_of(run, learner), seconds=300, what="the join link")
    volunteers = [
        swarm.start(f"volunteer-{i}", "join", link, *LISTEN, home=folder / f"home-{i}") for i in range(_JOINS)
    ]
    first_s = wait_until(lambda: _verified(folder) and time.monotonic() - began, seconds=600, what="a verified group")
    say(f"first verified group after {first_s:.0f} s")
    _wait(run, learner, until=began + 60 * arguments.minutes)
    trained_s = time.monotonic() - began
    for role in (*volunteers, learner):
        role.process.terminate()
    for role in (*volunteers, learner):
        role.wait(120)
    after = _accuracy(run, None, arguments, environment)
    rewards = _rewards(run)
    return {
        "task": task.preset,
        "scorer": task.scorer.rpartition("/")[2],
        "lora_rank": arguments.lora,
        "init_and_evaluation_s": round(init_s),
        "first_verified_group_s": round(first_s, 1),
        "minutes_trained": round(trained_s / 60, 1),
        "updates": len(rewards),
        "verified_groups": _verified(folder),
        "sampled_reward_first_and_last": [round(sum(part) / len(part), 3) for part in (rewards[:5], rewards[-5:])],
        "accuracy_before": round(before, 4),
        "accuracy_after": round(after, 4),
        "gain": round(after - before, 4),
        "passed": first_s < arguments.first_within and after - before >= arguments.gain,
    }


def _wait(run: Path, learner: RoleProcess, *, until: float) -> None:
    """Print each update once, until the learner ends or time is up."""
    shown = 0
    while learner.is_alive and time.monotonic() < until:
        rewards = _rewards(run)
        for number in range(shown, len(rewards)):
            say(f"{until - time.monotonic():6.0f} s left  update {number + 1}  reward {rewards[number]:.3f}")
        shown = len(rewards)
        time.sleep(1.0)
    if not learner.is_alive:
        assert learner.process.returncode == 0, learner.log[-2000:]


def _accuracy(run: Path, checkpoint: Path | None, arguments: argparse.Namespace, variables: dict[str, str]) -> float:
    """Share of the held-out rows that greedy decoding of a checkpoint, the newest by default, answers right."""
    options = ("--split", "held-out", "--greedy", "--prompts", str(arguments.held_out), "--json")
    chosen = () if checkpoint is None else ("--checkpoint", str(checkpoint))
    done = command("eval", str(run), *chosen, *options, environment=variables, timeout_s=3600)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["tasks"]["own"]["greedy_pass"]["rate"])


def _script(name: str, *arguments: str) -> None:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
    subprocess.run(
        [sys.executable, str(_ROOT / "scripts" / name), *arguments], check=True, env={**os.environ, "PYTHONPATH": path}
    )


def _link_of(run: Path, learner: RoleProcess) -> str:
    assert learner.is_alive, learner.log[-2000:]
    path = run / "link"
    return path.read_text().strip() if path.exists() else ""


def _verified(folder: Path) -> int:
    """Groups of both volunteers that the learner has verified, as their last status says."""
    return sum(status_of(home).get("groups", {}).get("verified", 0) for home in folder.glob("home-*"))


def _rewards(run: Path) -> list[float]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [float(found[1]) for line in lines if (found := re.search(r'"reward": ([-0-9.e]+)', line))]


if __name__ == "__main__":
    sys.exit(main())
