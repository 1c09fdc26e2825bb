"""Train one run over ranks: kill random ones of them, or change the plan at each start; then audit every update.

    python -m p2prl_lab.rank_runs --plans pp2 --kills 20 --seed 0
    python -m p2prl_lab.rank_runs --plans 1,dp2,pp2,1 --updates 120

The audit trains all batches again without interruption, by the recorded plans, and wants every published version and
the last checkpoint to the bit. With several plans, a second run by the first of them alone says what the changes cost.
Prints its actions; exits 1 and keeps the folder when a guarantee is broken.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from p2prl.exit_codes import INTERRUPTED, TEMPORARY
from p2prl_lab.progress_lines import say
from p2prl_lab.testing.made_run import make_run
from p2prl_lab.testing.run_audit import RunAudit, audit_run, record_everything, recorded_steps
from p2prl_lab.testing.swarm_processes import (
    LISTEN,
    PATIENCE,
    RoleProcess,
    SwarmProcesses,
    command,
    have_ended,
    spools,
    wait_until,
)

_FOLLOWER = "p2prl.ranks.follower_process"

_ENDS_WITHIN_S = 10.0
"""What users are promised once a rank is gone."""

_MOMENT_S = (0.0, 8.0)
"""Time from the start of the other ranks to a kill: while they meet, load or train again."""

_TRAINING_S = (0.0, 3.0)
"""The same from an update after that, of every second kill on average: while they train, write or publish."""

_UNHURRIED = ("--threads", "1", "--slots", "1", "--share", "0.3")
"""Of volunteers whose groups matter, and not their number: the learner checks each of them."""

_START_S = 300.0
_LOST_REWARD = 0.05
"""Reward of a run of some hundred updates varies by this much with the order in which groups arrive."""


@dataclass(slots=True)
class Report:
    """Figures of one run."""

    killed: list[str] = field(default_factory=list)
    """The rank of every kill, and what was said of it."""
    ended_s: list[float] = field(default_factory=list)
    """From a kill to the end of the last rank."""
    reward: float = 0.0
    audit: RunAudit | None = None
    wall_s: float = 0.0

    def summary(self) -> dict[str, Any]:
        """The figures, for JSON."""
        assert self.audit is not None
        return {
            "kills": len(self.killed),
            "kills_of_rank_0": sum(each.startswith("0") for each in self.killed),
            "ended_s_max": round(max(self.ended_s, default=0.0), 2),
            "updates": self.audit.updates,
            "versions": self.audit.versions,
            "policies_reproduced": self.audit.policies_reproduced,
            "groups": self.audit.groups,
            "verified": self.audit.verified,
            "rejected": self.audit.rejected,
            "reward": round(self.reward, 4),
            "wall_s": round(self.wall_s, 1),
        }


class RankRun:
    """One run under a list of plans. Drives processes; it does not run inside them."""

    def __init__(self, swarm: SwarmProcesses, run: Path, *, plans: list[str], updates: int, seed: int) -> None:
        self._swarm = swarm
        self._run = run
        self._plans = plans
        self._updates = updates
        self._rng = random.Random(seed)  # noqa: S311 - a seeded run
        self._homes = [swarm.folder / "homes" / f"volunteer-{n}" for n in (1, 2)]
        self._pause = threading.Event()
        self.report = Report()

    def execute(self, *, kills: int) -> Report:
        """Train by each plan in turn, kill while the first trains, and audit. AssertionError on a violation."""
        began = time.monotonic()
        record_everything(self._run)
        learner = self._start(self._plans[0])
        link = str(wait_until(lambda: _text(self._run / "link"), seconds=_START_S, what="a join link"))
        for home in self._homes:
            self._swarm.start(home.name, "join", link, *_UNHURRIED, *LISTEN, home=home)
        wait_until(lambda: recorded_steps(self._run), seconds=_START_S, what="a first update")
        for _ in range(kills):
            self._kill_a_rank(learner)
            self._swarm.start_again(learner)
        for number, plan in enumerate(self._plans[1:], start=1):
            wanted = self._updates * number // len(self._plans)
            self._wait(learner, lambda wanted=wanted: recorded_steps(self._run) >= wanted, "updates")  # type: ignore[misc]
            learner.process.send_signal(signal.SIGINT)
            assert learner.wait(60) == INTERRUPTED, learner.log[-2000:]
            say(f"plan {plan} from step {recorded_steps(self._run)}")
            learner = self._start(plan)
        self._wait(learner, lambda: learner.process.poll() not in (None, TEMPORARY), "the end of the learner")
        assert learner.wait(0) == 0, learner.log[-3000:]
        for home in self._homes:
            assert self._swarm.roles[home.name].wait(60) == 9
        self.report.audit = audit_run(self._run, [path for home in self._homes for path in spools(home)])
        self._check_by_commands()
        self.report.wall_s = time.monotonic() - began
        return self.report

    def _start(self, plan: str) -> RoleProcess:
        options = ("--updates", str(self._updates), "--plan", plan)
        return self._swarm.start("learner", "learn", str(self._run), *options, *LISTEN)

    def _wait(self, learner: RoleProcess, condition: Callable[[], bool], what: str) -> None:
        """Wait, and start the learner again where its network gave up on a busy machine, as a service does."""

        def holds() -> bool:
            if learner.process.poll() == TEMPORARY:
                say(f"the learner ended with {TEMPORARY}; started again")
                self._swarm.start_again(learner)
            return condition()

        wait_until(holds, seconds=_START_S + 2.0 * self._updates, what=what)

    def _kill_a_rank(self, learner: RoleProcess) -> None:
        """SIGKILL one rank at a random moment, and wait for the end of all."""
        self._wait(learner, lambda: bool(followers(learner)), "other ranks")
        done, moment_s = recorded_steps(self._run), self._rng.uniform(*_MOMENT_S)
        if self._rng.random() < 0.5:
            moment_s = self._rng.uniform(*_TRAINING_S)
            self._wait(learner, lambda: recorded_steps(self._run) > done, "an update")
        self._pause.wait(moment_s)
        self._wait(learner, lambda: bool(followers(learner)), "other ranks")
        ranks = [psutil.Process(learner.process.pid), *followers(learner)]
        rank = self._rng.randrange(len(ranks))
        assert learner.is_alive, f"the learner ended unexpectedly:\n{learner.log[-2000:]}"
        written, killed_at = len(learner.log), time.monotonic()
        ranks[rank].send_signal(signal.SIGKILL)
        code = learner.wait(_ENDS_WITHIN_S / PATIENCE)
        wait_until(lambda: have_ended(ranks), seconds=_ENDS_WITHIN_S, what="an end of all ranks", patience=1.0)
        self.report.ended_s.append(time.monotonic() - killed_at)
        said = learner.log[written:]
        if rank:
            assert code == TEMPORARY, f"exit code {code}:\n{said}"
            assert f"rank {rank} of the learner" in said, said
            assert "Traceback" not in said, said
        self.report.killed.append(f"{rank}: {' '.join(said.split())[-160:]}")
        say(
            f"kill {len(self.report.killed)}: rank {rank} at step {recorded_steps(self._run)},"
            f" all ended in {self.report.ended_s[-1]:.1f} s"
        )

    def _check_by_commands(self) -> None:
        """Check ledger and checkpoint with the project's own commands."""
        environment = self._swarm.environment()
        assert self.report.audit is not None
        verified = command("ledger", "verify", str(self._run), "--json", environment=environment)
        assert verified.returncode == 0, verified.stderr
        assert json.loads(verified.stdout)["totals"]["verified_groups"] == self.report.audit.verified
        result = command("eval", str(self._run), "--threads", "1", "--json", environment=environment)
        assert result.returncode == 0, result.stderr
        self.report.reward = float(json.loads(result.stdout)["reward"])


def followers(learner: RoleProcess) -> list[psutil.Process]:
    """The learner's other ranks, in their order."""
    found = {}
    for process in learner.tree():
        with suppress(psutil.Error):
            words = process.cmdline()
            if _FOLLOWER in words:
                found[int(words[words.index(_FOLLOWER) + 1])] = process
    return [found[number] for number in sorted(found)]


def _text(path: Path) -> str:
    return path.read_text().strip() if path.exists() else ""


def main() -> int:
    """Run one test and print its report as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plans", default="1,dp2,pp2,1", help="comma-separated: one start of the learner for each")
    parser.add_argument("--kills", type=int, default=0, help="kill -9s of random ranks of the first plan")
    parser.add_argument("--updates", type=int, default=120, help="learner updates of the run")
    parser.add_argument("--seed", type=int, default=0, help="ranks and moments of the kills")
    parser.add_argument("--warm", type=Path, help="a run folder of `p2prl init NAME` whose model to start from")
    arguments = parser.parse_args()
    plans = arguments.plans.split(",")
    found = {}
    for name, chosen in [("run", plans), *([("unchanged", plans[:1])] if len(plans) > 1 else [])]:
        folder = Path(tempfile.mkdtemp(prefix="rank-runs-"))
        swarm = SwarmProcesses(folder, forks=True)
        try:
            with swarm.running():
                made = make_run(swarm, warm=arguments.warm)
                trained = RankRun(swarm, made, plans=chosen, updates=arguments.updates, seed=arguments.seed)
                found[name] = trained.execute(kills=arguments.kills if name == "run" else 0).summary()
        except AssertionError as error:
            say(f"BROKEN: {error}\nKept in {folder}")
            return 1
        shutil.rmtree(folder)
    print(json.dumps({"plans": plans, **found}, indent=2, sort_keys=True))
    if "unchanged" in found and found["run"]["reward"] < found["unchanged"]["reward"] - _LOST_REWARD:
        say("BROKEN: the run that changed its plan ended with a lower reward")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
