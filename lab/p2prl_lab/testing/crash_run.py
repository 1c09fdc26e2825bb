"""Kill the roles of a real run at seeded random times, and check that it keeps every guarantee."""

from __future__ import annotations

import json
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from p2prl_lab.testing.crash_plan import CrashPlan, CrashReport
from p2prl_lab.testing.restless_owner import RestlessOwner
from p2prl_lab.testing.run_audit import audit_run, record_everything, recorded_steps
from p2prl_lab.testing.starved_time import StarvedTime, threads_of
from p2prl_lab.testing.swarm_processes import (
    EXACTLY,
    LISTEN,
    PATIENCE,
    RoleProcess,
    SwarmProcesses,
    command,
    daemon_folder,
    go_on,
    have_ended,
    kill_main,
    kill_tree,
    lasting,
    rows,
    spools,
    status_of,
    stop_sending,
    wait_until,
)

_ORPHANS_END_S = 12.0
"""A network process notices at once that its role ended; its daemon gets three seconds to exit before it is killed."""

_COMMAND_S = 600.0
"""For a command that takes seconds of processor time, on a machine that gives it a hundredth."""

_STORM = "storm"

_TEMPORARY = (7, 75)
"""Exit codes after which a service starts a worker again: no peer answered, a process failed (docs/cli.md)."""

_MOST_LAST_STARTS = 3
"""A learner that has ended the run is started again this often, at most, for groups that it had no time to check."""

_UPDATES_AFTER = 10
"""Updates after the last kill, at least."""

_RESUMED = re.compile(r"resuming at step (\d+)")


def dealt_roles(rng: random.Random) -> Iterator[str]:
    """The roles of a swarm in random order, all of them before one comes again."""
    while True:
        deck = ["learner", "volunteer", "validator", "seeder"]
        rng.shuffle(deck)
        yield from deck


@dataclass(frozen=True, slots=True)
class _Sleeper:
    """The processes of a machine that sleeps, and when it wakes up."""

    processes: list[psutil.Process]
    until: float


class CrashRun:
    """One swarm under kills. Drives processes; it does not run inside them.

    More than twelve attributes, because each fault has a count of its own that the report shows.
    """

    def __init__(self, swarm: SwarmProcesses, run: Path, plan: CrashPlan, *, say: Callable[[str], None]) -> None:
        self._swarm = swarm
        self._run = run
        self._plan = plan
        self._say = say
        self._rng = random.Random(plan.seed)
        self._homes = [swarm.folder / "homes" / f"volunteer-{n}" for n in range(1, plan.volunteers + 1)]
        self._dealt = dealt_roles(self._rng)
        self._folders: set[Path] = set()
        self._resumes: list[tuple[int, int]] = []
        self._pause = threading.Event()
        self._asleep: dict[str, _Sleeper] = {}
        self._owner = RestlessOwner(self._homes, random.Random(plan.seed + 1)) if plan.owner else None
        self.report = CrashReport()

    def execute(self) -> CrashReport:
        """Start everything, kill as planned, wait for the run to end, and audit it. AssertionError on a violation."""
        began = time.monotonic()
        record_everything(self._run)
        learner, link = self._start_all()
        for number in range(self._plan.kills):
            self._wait_restlessly(self._rng.uniform(*self._plan.pause_s))
            assert learner.is_alive, f"the learner exited unexpectedly:\n{learner.log[-2000:]}"
            self._kill(self._next_victim(learner))
            for _ in range(self._naps_by(number + 1) - self._naps_by(number)):
                self._nap()
            if self._rng.random() < 0.5:  # else the next kill meets a swarm that is still recovering
                done = recorded_steps(self._run)
                self._wait(lambda done=done: recorded_steps(self._run) > done, seconds=90, what="an update")  # type: ignore[misc]
        self._wait(lambda: not self._asleep, seconds=self._plan.nap_s, what="everybody awake")
        self._last_learner_kill(learner)
        self._await_end(learner, link)
        self.report.audit = audit_run(self._run, [path for home in self._homes for path in spools(home)])
        self._check_resumes(learner)
        self._check_by_commands()
        self.report.wall_s = time.monotonic() - began
        return self.report

    def _wait_restlessly(self, seconds: float) -> None:
        """Wait before the next kill; an owner gives commands meanwhile, the last one just before it."""
        if self._owner is None:
            self._pause.wait(seconds)
            return
        for _ in range(3):
            self._pause.wait(seconds / 3)
            self._owner.act()
        self.report.commands = dict(self._owner.given)

    def _naps_by(self, kills: int) -> int:
        """Naps that have begun after this number of kills."""
        return self._plan.naps * kills // self._plan.kills

    def _next_victim(self, learner: RoleProcess) -> RoleProcess:
        roles = self._swarm.roles
        if self._plan.volunteers_only:
            return self._awake_volunteer()
        if not self._plan.every_role:
            left_out = {learner.name, _STORM, *self._asleep}
            others = [role for role in roles.values() if role.name not in left_out]
            return learner if self._rng.random() < 0.4 else self._rng.choice(others)
        kind = next(self._dealt)
        return self._awake_volunteer() if kind == "volunteer" else roles[kind]

    def _awake_volunteer(self) -> RoleProcess:
        """A volunteer whose machine does not sleep, as soon as there is one."""
        names = [home.name for home in self._homes]
        awake = self._wait(
            lambda: [name for name in names if name not in self._asleep], seconds=self._plan.nap_s, what="one awake"
        )
        return self._swarm.roles[self._rng.choice(awake)]

    def _learn(self, updates: int) -> tuple[str, ...]:
        """The learner's command; 0 updates for a run that does not end before all kills, however long they take."""
        return ("learn", str(self._run), "--updates", str(updates), *LISTEN)

    def _start_all(self) -> tuple[RoleProcess, str]:
        start = self._swarm.start
        learner = start("learner", *self._learn(0 if self._plan.is_open_ended else self._plan.updates))
        link = str(self._wait(lambda: _text(self._run / "link"), seconds=60, what="a join link"))
        for home in self._homes:
            start(home.name, "join", link, "--threads", "1", "--share", str(self._plan.share), *LISTEN, home=home)
        start("validator", "validate", link, "--threads", "1", *LISTEN, home=self._swarm.folder / "homes" / "validator")
        start("board", "board", link, "--port", "0", *LISTEN, home=self._swarm.folder / "homes" / "board")
        if self._plan.every_role:
            start("seeder", "seed", link, *LISTEN, home=self._swarm.folder / "homes" / "seeder")
        self._wait(lambda: _text(self._run / "metrics.jsonl"), seconds=180, what="a first update")
        if self._plan.storm_keys:
            storm = start(_STORM, link, "--keys", str(self._plan.storm_keys), module="p2prl_lab.testing.storm")
            self._wait(lambda: _last_line(storm.log).get("groups"), seconds=90, what="a first flood")
        return learner, link

    def _kill(self, role: RoleProcess) -> None:
        """Send SIGKILL to the main process, its whole tree, or the network process, which its role then replaces."""
        self._revive()
        daemon = role.daemon()
        if daemon is not None:
            self._folders.add(daemon_folder(daemon))
        how = self._rng.choice(("main", "tree", "network"))
        network = role.network()
        if how == "network" and (network is None or daemon is None):
            how = "main"  # still starting, without a network process to kill
        self._note_state(role)
        self.report.killed.append(f"{role.name}/{how}")
        self._say(f"kill {len(self.report.killed)}: {self.report.killed[-1]} at step {recorded_steps(self._run)}")
        killed_at = time.monotonic()
        if how == "network":
            assert network is not None
            assert daemon is not None
            network.kill()
            self._await_orphans([daemon], killed_at, role)
            self._wait(lambda: role.network() not in (None, network), seconds=20, what=f"a network for {role.name}")
            assert role.is_alive, role.log[-2000:]
            return
        orphans: list[psutil.Process] = []
        if how == "tree":
            kill_tree(role)
        else:
            orphans = kill_main(role)
        expected, at_once = recorded_steps(self._run), self._rng.random() < 0.5
        if not at_once:
            self._await_orphans(orphans, killed_at, role)
        if role.name == "learner":
            self._resumes.append((len(role.log), expected))
        self._swarm.start_again(role)
        if at_once:
            self._await_orphans(orphans, killed_at, role)

    def _nap(self) -> None:
        """Put a volunteer that is at work to sleep, while the rest of the swarm goes on."""
        role = self._awake_volunteer()
        self._wait(role.daemon, seconds=60, what=f"a network for {role.name}")
        self._say(f"{role.name} sleeps at step {recorded_steps(self._run)}")
        self._note_state(role)
        processes = role.tree()
        stop_sending(processes)
        self._asleep[role.name] = _Sleeper(processes, time.monotonic() + self._plan.nap_s)

    def _wake(self) -> None:
        """Wake the machines that have slept long enough."""
        for name, sleeper in list(self._asleep.items()):
            if time.monotonic() >= sleeper.until:
                del self._asleep[name]
                go_on(sleeper.processes)
                assert self._swarm.roles[name].is_alive, self._swarm.roles[name].log[-2000:]
                self.report.slept.append(name)

    def _note_state(self, role: RoleProcess) -> None:
        home = self._swarm.folder / "homes" / role.name
        if home in self._homes:
            self.report.states[status_of(home).get("state", "starting")] += 1

    def _await_orphans(self, orphans: list[psutil.Process], killed_at: float, role: RoleProcess) -> None:
        if orphans:
            what = f"the end of {role.name}'s orphans"
            self._wait(lambda: have_ended(orphans), seconds=_ORPHANS_END_S, what=what, patience=EXACTLY)
            self.report.orphans_ended_s.append(time.monotonic() - killed_at)

    def _last_learner_kill(self, learner: RoleProcess) -> None:
        """Kill the learner once more, to measure the time until volunteers deliver again."""
        self._wait(lambda: learner.daemon(), seconds=60, what="a learner that is up")
        if (daemon := learner.daemon()) is not None:
            self._folders.add(daemon_folder(daemon))
        kill_tree(learner)
        self._resumes.append((len(learner.log), recorded_steps(self._run)))
        if self._plan.is_open_ended:
            learner.arguments = self._learn(max(self._plan.updates, recorded_steps(self._run) + _UPDATES_AFTER))
        known, links = _groups(self._run), learner.log.count("Join link")
        self._swarm.start_again(learner)
        self._wait(lambda: learner.log.count("Join link") > links, seconds=90, what="a learner that is up again")
        began = time.monotonic()
        self._wait(lambda: _groups(self._run) > known, seconds=60, what="a group for the restarted learner")
        self.report.learner_back_s = time.monotonic() - began

    def _await_end(self, learner: RoleProcess, link: str) -> None:
        assert self._exit_code(learner, self._plan.finish_s) == 0, learner.log[-3000:]
        if (storm := self._swarm.roles.pop(_STORM, None)) is not None:
            assert storm.is_alive, f"the floods ended early:\n{storm.log[-2000:]}"
            kill_tree(storm)
            self.report.flood = _last_line(storm.log)
        assert lasting(_text(self._run / "link")) == lasting(link), "an older link no longer leads to the learner"
        for role in self._swarm.roles.values():
            if role.name == "board":
                role.process.send_signal(signal.SIGINT)
                assert self._exit_code(role, 30) == 0, role.log[-2000:]
            elif role is not learner:
                code = self._exit_code(role, 60)
                assert code == 9, f"{role.name}: {code}\n{role.log[-2000:]}"
        self._check_the_last(learner)
        self._wait(lambda: not self._swarm.survivors(), seconds=15, what="an end of every process", patience=EXACTLY)
        left = [folder for folder in self._folders if folder.exists()]
        assert not left, f"left behind: {left}"

    def _check_the_last(self, learner: RoleProcess) -> None:
        """Groups that the learner had no time to check are told of, and checked when it is started again."""
        self.report.left_at_end = _waiting(self._run)
        for _ in range(_MOST_LAST_STARTS):
            if not (left := _waiting(self._run)):
                return
            told = f"{left:,} delivered group"
            assert told in learner.log, f"the learner does not tell of {left} groups:\n{learner.log[-2000:]}"
            self._say(f"{left} groups are not checked: the learner is started again")
            self._swarm.start_again(learner)
            assert self._exit_code(learner, self._plan.finish_s) == 0, learner.log[-3000:]

    def _check_resumes(self, learner: RoleProcess) -> None:
        """Every restarted learner that logged its step resumed at the one after the last batch begun."""
        log = learner.log
        ends = [offset for offset, _ in self._resumes[1:]] + [len(log)]
        for (start, expected), end in zip(self._resumes, ends, strict=True):
            if found := _RESUMED.search(log[start:end]):
                assert int(found.group(1)) == expected
                self.report.resumes_checked += 1

    def _check_by_commands(self) -> None:
        """Check the ledger and the checkpoint with the project's own commands."""
        environment = self._swarm.environment()
        assert self.report.audit is not None
        verified = command(
            "ledger",
            "verify",
            str(self._run),
            "--json",
            environment=environment,
            timeout_s=_COMMAND_S * self._plan.patience,
        )
        assert verified.returncode == 0, verified.stderr
        totals = json.loads(verified.stdout)["totals"]
        assert totals["verified_groups"] == self.report.audit.verified, totals
        result = command(
            "eval",
            str(self._run),
            "--threads",
            "1",
            "--json",
            environment=environment,
            timeout_s=_COMMAND_S * self._plan.patience,
        )
        assert result.returncode == 0, result.stderr
        self.report.reward = float(json.loads(result.stdout)["reward"])

    def _wait(self, condition: Callable[[], Any], *, seconds: float, what: str, patience: float = PATIENCE) -> Any:
        def holds() -> Any:
            self._revive()
            self._wake()
            return condition()

        clock = StarvedTime(lambda: threads_of(process.pid for process in self._swarm.survivors()))
        return wait_until(holds, seconds=seconds * self._plan.patience, what=what, patience=patience, clock=clock)

    def _revive(self) -> None:
        """Start again what gave up for a while, as its service does."""
        for role in self._swarm.roles.values():
            if role.process.poll() in _TEMPORARY:
                self._say(f"{role.name} ended with {role.process.returncode}; started again")
                self.report.revived[role.name] += 1
                self._swarm.start_again(role)

    def _exit_code(self, role: RoleProcess, seconds: float) -> int:
        self._wait(lambda: role.process.poll() is not None, seconds=seconds, what=f"the end of {role.name}")
        return role.wait(0)


def _last_line(log: str) -> dict[str, int]:
    """The newest JSON object in a log; empty without one."""
    lines = [line for line in log.splitlines() if line.startswith("{") and line.endswith("}")]
    return json.loads(lines[-1]) if lines else {}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _waiting(run: Path) -> int:
    return int(rows(run / "journal.db", "SELECT COUNT(*) FROM groups WHERE state = 'stored'")[0][0])


def _groups(run: Path) -> int:
    return int(rows(run / "journal.db", "SELECT COUNT(*) FROM groups")[0][0])
