"""Kill learner, standby learner and replayers at random moments; promote the standby now and then; audit what is left.

    python -m p2prl_lab.standby_kills --kills 30 --seed 0

A learner with one replayer, its standby learner and two volunteers are processes on loopback addresses. After a random
time one of them gets a SIGKILL with all that it has started: a standby and a replayer are started again, and so is a
learner, in every second case; in the others the standby is killed too, `p2prl promote` makes its copy the run folder, a
learner goes on there, and a new standby begins empty. The folder of a learner that was replaced is never used again. In
the end everything is stopped, and the last run folder is audited with the volunteers' spools: one chain, every group
that a volunteer was told is stored, none credited or trained on twice, and every published version made again from its
batches to the last bit. Prints a report as JSON; exits 1 at the first contradiction, and keeps the folder.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.progress_lines import say
from p2prl_lab.testing.run_audit import audit_run, record_everything, recorded_steps
from p2prl_lab.testing.swarm_processes import (
    LISTEN,
    RoleProcess,
    SwarmProcesses,
    command,
    kill_tree,
    spools,
    wait_until,
)

GIVEN = ("run.manifest", "key.json", "run.toml", "link")
"""What the owner copies to another machine."""

VOLUNTEERS = 2
LEARNER, PROMOTION, STANDBY, REPLAYER = "learner", "promotion", "standby", "replayer"
_REPLAYER = "p2prl.replayers.replayer_process"
_LONGEST_S = 15.0
"""Between two kills, at most: some updates, and a good part of a start."""

_sleep = threading.Event().wait


@dataclass
class Report:
    """What was done and found. A record: every field is one figure of the report."""

    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys((LEARNER, PROMOTION, STANDBY, REPLAYER), 0))
    learners_ended: int = 0
    """Learners that ended with a sentence, as their replayer was killed while they started."""
    refused_promotions: int = 0
    """The copy lacked what peers had seen, as its learner had gone on without it; the learner was started again."""
    updates: int = 0
    versions: int = 0
    groups: int = 0
    rejected: int = 0
    versions_made_again: int = 0
    in_spools: int = 0


class Machines:
    """The owner's machines, of which one learns and another follows."""

    def __init__(self, swarm: SwarmProcesses, run: Path) -> None:
        self._swarm = swarm
        self.run = run
        self._number = 0
        self.learner = self._learn()
        wait_until(lambda: (run / "link").exists(), seconds=120, what="a link")
        self.standby = self._follow()

    def await_standby(self) -> None:
        """Wait until the learner says that its standby has all of it."""

        def keeps_step() -> bool:
            self.revive()
            return "keeps step" in _since_start(self.learner)

        wait_until(keeps_step, seconds=240, what="a standby that keeps step")

    def revive(self) -> bool:
        """Start a learner again that ended since its replayer was killed before it had a policy, and says so."""
        if self.learner.is_alive:
            return False
        assert "Start again" in _since_start(self.learner), f"the learner has ended:\n{self.learner.log[-2000:]}"
        _mark_start(self.learner)
        self._swarm.start_again(self.learner)
        return True

    def replayer(self) -> psutil.Process | None:
        """The learner's replayer."""
        for each in self.learner.tree():
            with contextlib.suppress(psutil.Error):
                if _REPLAYER in " ".join(each.cmdline()):
                    return each
        return None

    def restart(self, role: RoleProcess) -> None:
        """Kill a role and start it again."""
        kill_tree(role)
        _mark_start(role)
        self._swarm.start_again(role)

    def promote(self) -> bool:
        """The learner's machine is lost: its standby takes its place. False where the program refuses that."""
        kill_tree(self.learner)
        _sleep(1.0)
        kill_tree(self.standby)
        copy = Path(self.standby.arguments[1])
        done = command("promote", str(copy), "--yes", "--json", environment=self._swarm.environment())
        if done.returncode:
            say(f"promotion refused: {' '.join(done.stderr.split())[:200]}")
            _mark_start(self.learner)
            self._swarm.start_again(self.learner)
            self._swarm.start_again(self.standby)
            return False
        self.run = copy
        self.learner, self.standby = self._learn(), self._follow()
        return True

    def _learn(self) -> RoleProcess:
        self._number += 1
        options = ("--updates", "0", "--replayers", "1", *LISTEN)
        return self._swarm.start(f"learner-{self._number}", "learn", str(self.run), *options)

    def _follow(self) -> RoleProcess:
        copy = self._swarm.folder / f"machine-{self._number}"
        copy.mkdir()
        for name in GIVEN:
            shutil.copy2(self.run / name, copy / name)
        return self._swarm.start(f"standby-{self._number}", "learn", str(copy), "--standby", *LISTEN)


def _mark_start(role: RoleProcess) -> None:
    with role.log_path.open("a") as log:
        log.write("\n--- killed ---\n")


def _since_start(role: RoleProcess) -> str:
    return " ".join(role.log.rpartition("--- killed ---")[2].split())


def run_kills(swarm: SwarmProcesses, run: Path, *, kills: int, seed: int) -> Report:
    """The whole test. Raises an AssertionError that describes the contradiction."""
    rng, report = random.Random(seed), Report()  # noqa: S311 - chooses what is killed
    machines = Machines(swarm, run)
    link = (run / "link").read_text().strip()
    homes = [swarm.folder / f"home-{number}" for number in range(VOLUNTEERS)]
    options = (link, "--threads", "1", "--share", "0.1", *LISTEN)
    volunteers = [swarm.start(f"volunteer-{n}", "join", *options, home=home) for n, home in enumerate(homes)]
    machines.await_standby()
    while sum(report.kills.values()) + report.refused_promotions < kills:
        _sleep(rng.uniform(0.5, _LONGEST_S))
        report.learners_ended += machines.revive()
        kind = rng.choice((LEARNER, PROMOTION, STANDBY, REPLAYER))
        say(f"step {recorded_steps(machines.run)}: {kind}")
        if kind == PROMOTION:
            machines.await_standby()
            _sleep(rng.uniform(0.0, _LONGEST_S / 3))
            if machines.promote():
                report.kills[kind] += 1
            else:
                report.refused_promotions += 1
            continue
        if kind == REPLAYER:
            if (replayer := machines.replayer()) is None:
                continue
            replayer.kill()
        else:
            machines.restart(machines.learner if kind == LEARNER else machines.standby)
        report.kills[kind] += 1
    machines.revive()
    wanted = recorded_steps(machines.run) + 3
    wait_until(lambda: recorded_steps(machines.run) >= wanted, seconds=300, what="updates after the last kill")
    for role in (*volunteers, machines.learner, machines.standby):
        assert role.is_alive, f"{role.name} has ended:\n{role.log[-2000:]}"
        assert "two different" not in role.log, f"{role.name} has seen two histories"
    for role in (machines.learner, *volunteers, machines.standby):
        role.process.send_signal(signal.SIGINT)
        role.wait(120)
    verified = command("ledger", "verify", str(machines.run), environment=swarm.environment())
    assert verified.returncode == 0, verified.stderr
    audit = audit_run(machines.run, [path for home in homes for path in spools(home)], has_ended=False)
    report.updates, report.versions, report.groups = audit.updates, audit.versions, audit.groups
    report.rejected, report.in_spools = audit.rejected, audit.spooled
    report.versions_made_again = audit.policies_reproduced
    return report


def make_run(swarm: SwarmProcesses) -> Path:
    """A run of a model with random weights, four groups an update."""
    base = swarm.folder / "base"
    made = tiny_model("chain4", seed=1)
    made.model.save_pretrained(base)
    made.tokenizer.save_pretrained(base)
    options = ("--preset", "chain4", "--in", str(swarm.folder), "--model", str(base), "--probe", "off")
    done = command("init", "run", *options, environment=swarm.environment())
    assert done.returncode == 0, done.stderr
    settings = swarm.folder / "run" / "run.toml"
    text = settings.read_text()
    assert "\ngroups_per_update = 16 " in text
    settings.write_text(text.replace("\ngroups_per_update = 16 ", "\ngroups_per_update = 4 "))
    record_everything(settings.parent)
    return settings.parent


def main() -> int:
    """Run the test and print its report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="order, moments and kinds of the kills")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="standby-"))
    swarm = SwarmProcesses(folder, forks=True)
    try:
        with swarm.running():
            report = run_kills(swarm, make_run(swarm), kills=arguments.kills, seed=arguments.seed)
    except AssertionError as error:
        say(f"BROKEN: {error}\nKept in {folder}")
        return 1
    print(json.dumps(dataclasses.asdict(report), indent=2))
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
