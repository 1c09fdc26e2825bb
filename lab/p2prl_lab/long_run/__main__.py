"""Train a model of 31 million parameters on long completions with three volunteers, by the real commands.

    python -m p2prl_lab.long_run --updates 60
    python -m p2prl_lab.long_run --updates 60 --vllm-python /path/to/an/environment/with/vllm/bin/python

Makes a model with a vocabulary of 151,936 and warm-starts it on flawed count-downs of up to 1,024 tokens
(`--model DIRECTORY` takes one made before), then runs `p2prl init`, `learn` and `join` on loopback. The third volunteer
samples with vLLM if a Python with vLLM is named. Prints the reward on fresh prompts before and after the run as JSON,
with `p2prl eval`: that of the groups trained on starts too high, since short completions arrive first. Exits 1 unless
it rose by `--gain`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from p2prl_lab.long_run.count_down import COUNT_DOWN
from p2prl_lab.progress_lines import say
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, status_of, wait_until

_ROOT = Path(__file__).resolve().parents[3]
_SMOOTHED = 5
"""Updates over which the reward of the groups trained on is averaged, at the start and at the end."""

_SETTINGS = """\
device = "cpu"
threads = 1

[learner]
groups_per_update = {groups}
updates = {updates}
checkpoint_every = 20

[learner.optimizer]
learning_rate = {rate}
warmup_updates = 3

[loss]
name = "gepo_t"
options = {{sharpness = 1}}
"""


def main() -> int:
    """Run it, and print the report."""
    arguments = _arguments()
    folder = arguments.out or Path(tempfile.mkdtemp(prefix="long-run-"))
    folder.mkdir(parents=True, exist_ok=True)
    model = arguments.model or folder / "model"
    if not model.exists():
        _make_model(model, arguments.seed)
    swarm = SwarmProcesses(folder)
    with swarm.running():
        report = _run(swarm, folder, model, arguments)
    print(json.dumps(report, indent=2, sort_keys=True))
    say(f"Kept in {folder}")
    return 0 if report["gain"] >= arguments.gain else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--groups", type=int, default=4, help="groups of 8 completions per update")
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gain", type=float, default=0.3, help="rise of the sampled reward that counts as success")
    parser.add_argument("--prompts", type=int, default=192, help="fresh prompts to sample before and after")
    parser.add_argument("--minutes", type=float, default=120.0, help="longest run")
    parser.add_argument("--model", type=Path, default=None, help="directory of a model made before")
    parser.add_argument("--out", type=Path, default=None, help="folder of the run, its logs and the model")
    parser.add_argument("--vllm-python", default="", help="python of an environment with vLLM, for the third volunteer")
    return parser.parse_args()


def _make_model(directory: Path, seed: int) -> None:
    from p2prl_lab.long_run.counting_model import make_counting_model

    def on_step(step: int, steps: int, loss: float) -> None:
        if step % 25 == 0 or step == steps:
            say(f"warm start {step}/{steps}  loss {loss:.3f}")

    make_counting_model(directory, seed=seed, on_step=on_step)


def _run(swarm: SwarmProcesses, folder: Path, model: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    variables = _task_package(folder)
    options = ("--model", str(model), "--task", COUNT_DOWN.name, "--dtype", "bfloat16", "--compute-dtype", "float32")
    limits = ("--max-new-tokens", "1024", "--group-size", "8", "--staleness", "32")
    environment = swarm.environment() | variables
    made = command("init", "long", "--in", str(folder), *options, *limits, environment=environment, timeout_s=600)
    assert made.returncode == 0, made.stderr
    run = folder / "long"
    settings = _SETTINGS.format(groups=arguments.groups, updates=arguments.updates, rate=arguments.rate)
    (run / "run.toml").write_text(settings)
    learner = swarm.start("learner", "learn", str(run), *LISTEN, variables=variables)
    link = wait_until(lambda: _link_of(run, learner), seconds=300, what="the join link")
    volunteers = []
    for number in (1, 2, 3):
        vllm = arguments.vllm_python if number == 3 else ""
        volunteers.append(
            swarm.start(
                f"volunteer-{number}",
                "join",
                link,
                *LISTEN,
                "--engine",
                "vllm" if vllm else "transformers",
                home=folder / f"home-{number}",
                python=vllm or sys.executable,
                variables=variables,
            )
        )
    watch = _Watch(run)

    def is_over() -> bool:
        watch.show()
        return not learner.is_alive

    wait_until(
        is_over,
        seconds=60 * arguments.minutes,
        what=f"{arguments.updates} updates",
    )
    for volunteer in volunteers:
        volunteer.wait(120)
    assert learner.process.returncode == 0, learner.log[-2000:]
    report = _report(run, folder, time.monotonic() - watch.began)
    before = _evaluate(run, ("--checkpoint", str(run / "model")), arguments, environment)
    after = _evaluate(run, (), arguments, environment)
    return report | {"reward_before": before, "reward_after": after, "gain": round(after - before, 4)}


def _evaluate(
    run: Path, checkpoint: tuple[str, ...], arguments: argparse.Namespace, variables: dict[str, str]
) -> float:
    """Mean reward of a checkpoint, the newest by default, on fresh prompts."""
    say(f"sampling {arguments.prompts} fresh prompts")
    options = ("--prompts", str(arguments.prompts), "--seed", str(arguments.seed + 1), "--json")
    done = command("eval", str(run), *checkpoint, *options, environment=variables, timeout_s=3600)
    assert done.returncode == 0, done.stderr
    return round(float(json.loads(done.stdout)["reward"]), 4)


def _task_package(folder: Path) -> dict[str, str]:
    """Register the task as an installed package would, and return the variables under which Python finds it."""
    site = folder / "site"
    info = site / "p2prl_count_down-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: p2prl-count-down\nVersion: 1.0\n")
    entry = f"{COUNT_DOWN.name} = p2prl_lab.long_run.count_down:COUNT_DOWN"
    (info / "entry_points.txt").write_text(f"[p2prl.tasks]\n{entry}\n")
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {"PYTHONPATH": os.pathsep.join([str(site), str(_ROOT), str(_ROOT / "lab"), *inherited])}


def _link_of(run: Path, learner: RoleProcess) -> str:
    assert learner.is_alive, learner.log[-2000:]
    path = run / "link"
    return path.read_text().strip() if path.exists() else ""


class _Watch:
    """Prints each update once."""

    def __init__(self, run: Path) -> None:
        self.began = time.monotonic()
        self._run = run
        self._shown = 0

    def show(self) -> None:
        rewards = _rewards(self._run)
        for number in range(self._shown, len(rewards)):
            say(f"{time.monotonic() - self.began:6.0f} s  update {number + 1}  reward {rewards[number]:.3f}")
        self._shown = len(rewards)


def _rewards(run: Path) -> list[float]:
    path = run / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line)["reward"] for line in lines if line.endswith("}") and '"reward"' in line]


def _report(run: Path, folder: Path, wall_s: float) -> dict[str, Any]:
    rewards = _rewards(run)
    first, last = (sum(part) / len(part) for part in (rewards[:_SMOOTHED], rewards[-_SMOOTHED:]))
    return {
        "updates": len(rewards),
        "trained_reward_first": round(first, 4),
        "trained_reward_last": round(last, 4),
        "wall_s": round(wall_s),
        "volunteers": {
            home.name: {key: status_of(home).get(key) for key in ("groups", "reasons", "verified_tokens")}
            for home in sorted(folder.glob("home-*"))
        },
    }


if __name__ == "__main__":
    sys.exit(main())
