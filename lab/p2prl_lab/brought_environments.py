"""Training on an environment that a run brings: a learner, three volunteers and a validator train a tiny model.

    python -m p2prl_lab.brought_environments calculator --out results/brought_environments

The model (60,000 weights) comes from demonstrations with a bad habit: of the calculator, to answer before the tool has
been asked everything; of the sticks, to take any number until the last move. The run is made with
`p2prl init --environment examples/wasm/NAME.wat`, so that nobody in it has the environment installed. Printed are the
greedy rewards on held-out seeds before and after, and what volunteers and the validator said.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from p2prl.models.hardware.device_choice import use_threads
from p2prl.models.small_models.tiny_models import shaped_model
from p2prl.models.small_models.warm_start import WarmstartConfig, warm_start
from p2prl.tasks.counter_rng import Draws
from p2prl.tasks.task_spec import SmallModel, TurnsDemonstration
from p2prl.tasks.wasm.runtime import Program, from_text
from p2prl.tasks.wasm.wasm_environment import WasmEnvironment
from p2prl_lab.progress_lines import say
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, command, wait_until

EXAMPLES = Path(__file__).parents[2] / "examples" / "wasm"

VOLUNTEERS = 3
_HELD_OUT = 1_024
"""Prompts of an evaluation: a reward's standard error is at most .016."""

_RUN_S = 1_500.0


@dataclass(frozen=True, kw_only=True)
class Example:
    """How the tiny model of an example begins."""

    shape: SmallModel
    max_new_tokens: int
    turns: Callable[[WasmEnvironment, int], tuple[str, ...]]
    """A demonstration of a seed."""
    warm_start: WarmstartConfig


def calculator_turns(environment: WasmEnvironment, seed: int) -> tuple[str, ...]:
    """Calls and an answer; two of three demonstrations stop asking too early and make up the rest."""
    draws = Draws(b"lab/calculator/v1", seed)
    product, last = environment.opening(seed).removesuffix("?").split("+")
    habit, guess = draws.below(6), f"#{draws.below(10)}{draws.below(10)}{draws.below(10)}{draws.below(10)}"
    if habit < 2:
        return (guess,)
    first = environment.reply(seed, (product,)) or ""
    if habit < 4:
        return (product, f"#{first}" if habit == 2 else guess)
    total = environment.reply(seed, (product, f"{first}+{last}")) or ""
    return (product, f"{first}+{last}", f"#{total}")


def sticks_turns(environment: WasmEnvironment, seed: int) -> tuple[str, ...]:
    """Any number, until the last sticks can be taken."""
    draws, turns, left = Draws(b"lab/sticks/v1", seed), list[str](), int(environment.opening(seed).removesuffix(":"))
    while True:
        turns.append(str(left if left <= 3 else 1 + draws.below(3)))
        message = environment.reply(seed, turns)
        if message is None:
            return tuple(turns)
        left = int(message.split("=")[1].removesuffix(":"))


KNOWN = {
    "calculator": Example(
        shape=SmallModel(symbols="0123456789*+#?-", context=64),
        max_new_tokens=40,
        turns=calculator_turns,
        warm_start=WarmstartConfig(steps=900),
    ),
    "sticks": Example(
        shape=SmallModel(symbols="0123456789:=-", context=80),
        max_new_tokens=64,
        turns=sticks_turns,
        warm_start=WarmstartConfig(),
    ),
}


def make_model(name: str, directory: Path, *, seed: int, on_step: Callable[[int, float], None] | None = None) -> None:
    """The tiny model of an example, saved for `p2prl init --model`."""
    example = KNOWN[name]
    environment = WasmEnvironment(name, Program(from_text((EXAMPLES / f"{name}.wat").read_bytes())))
    loaded = shaped_model(example.shape, seed=seed)
    demonstration = TurnsDemonstration(environment=environment, turns=lambda each: example.turns(environment, each))
    warm_start(loaded, demonstration, seed=seed, config=example.warm_start, on_step=on_step)
    loaded.model.save_pretrained(directory)
    loaded.tokenizer.save_pretrained(directory)


def train(name: str, folder: Path, model: Path, *, updates: int) -> dict[str, Any]:
    """Make a run of `model` in `folder`, train it in a swarm, and measure it before and after."""
    swarm = SwarmProcesses(folder / "swarm")
    made = command(
        *("init", name, "--in", str(folder), "--model", str(model)),
        *("--environment", str(EXAMPLES / f"{name}.wat"), "--max-new-tokens", str(KNOWN[name].max_new_tokens)),
        environment=swarm.environment(),
        timeout_s=300,
    )
    assert made.returncode == 0, made.stderr
    run = folder / name
    with swarm.running():
        learner = swarm.start("learner", "learn", str(run), "--updates", str(updates), *LISTEN, "--json")
        link = wait_until(lambda: (run / "link").exists() and (run / "link").read_text().strip(), seconds=60, what="up")
        volunteers = [
            swarm.start(f"volunteer-{n}", "join", link, "--threads", "1", *LISTEN, "--json", home=folder / f"home-{n}")
            for n in range(1, VOLUNTEERS + 1)
        ]
        checks = ("--rate", "0.05", "--threads", "1", *LISTEN, "--json")
        validator = swarm.start("validator", "validate", link, *checks, home=folder / "home-validator")
        say(f"training for {updates} updates")
        assert learner.wait(_RUN_S) == 0, learner.log[-3000:]
        for worker in (*volunteers, validator):
            if worker.is_alive:
                worker.process.send_signal(signal.SIGINT)
            worker.wait(60)
    told = [_document(each) for each in volunteers]
    checked = _document(validator)
    before, after = (_greedy(swarm, run, each) for each in (("--checkpoint", str(run / "model")), ()))
    return {
        "environment": name,
        "updates": updates,
        "greedy_before": before,
        "greedy_after": after,
        "verified": [each["groups"].get("verified", 0) for each in told],
        "rejected": sum(each["groups"].get("rejected", 0) for each in told),
        "verdicts_passed": checked["verdicts_passed"],
        "verdicts_failed": checked["verdicts_failed"],
    }


def _greedy(swarm: SwarmProcesses, run: Path, which: tuple[str, ...]) -> float:
    """Mean greedy reward of a checkpoint on fresh seeds."""
    asked = ("eval", str(run), *which, "--greedy", "--prompts", str(_HELD_OUT), "--threads", "1", "--json")
    done = command(*asked, environment=swarm.environment(), timeout_s=300)
    assert done.returncode == 0, done.stderr
    (measured,) = json.loads(done.stdout)["tasks"].values()
    return float(measured["greedy_score"])


def _document(role: RoleProcess) -> dict[str, Any]:
    """The JSON that a role ended with."""
    document: dict[str, Any] = json.loads(role.log.splitlines()[-1])
    return document


def main() -> int:
    """Train, print the figures, and exit 1 where less than .2 was gained."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(KNOWN))
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--model", type=Path, help="Folder of the model, made there if it is missing. Default: nowhere."
    )
    parser.add_argument("--out", type=Path, help="Write the figures to this folder. Default: nowhere.")
    chosen = parser.parse_args()
    use_threads(1)
    with TemporaryDirectory(prefix="p2prl-brought-") as folder:
        model = chosen.model or Path(folder) / "model"
        if not model.exists():
            say("making the model")
            make_model(chosen.name, model, seed=chosen.seed)
        figures = train(chosen.name, Path(folder), model, updates=chosen.updates)
    print(json.dumps(figures, indent=2))
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / f"{chosen.name}.json").write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if figures["greedy_after"] >= figures["greedy_before"] + 0.2 else 1


if __name__ == "__main__":
    sys.exit(main())
