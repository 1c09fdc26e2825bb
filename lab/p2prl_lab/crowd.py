"""A crowd over real sockets: five listed runs, five volunteers with `join --any`, and how they follow what happens.

    python -m p2prl_lab.crowd      # exits with 1 where a run waits, a volunteer stays too long, or a group is lost
    python -m p2prl_lab.crowd --share 0.1 --watch-s 180 --json

Three runs train the same tiny model with 2, 4 and 8 groups an update, so that they lack different numbers of
volunteers. Volunteers are throttled (`--share`). An index drops the listing of one run, and the learner of another is
stopped for a while. Then a run of few updates is listed until it ends, and one whose learner calls every right group
wrong. Learners, volunteers and their workers are processes of the real program; the index is the product's, in this
process, because no command of its drops a listing. At the end spools and journals are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from p2prl.cli.commands.join_any import folder_of
from p2prl.cli.commands.status import ANY_FILE
from p2prl.clock import SystemClock
from p2prl.config.new_run import init_run, open_run
from p2prl.config.presets import preset_by_name
from p2prl.config.worker_folder import read_status
from p2prl.index.index_documents import runs_document
from p2prl.index.index_state import IndexState
from p2prl.index.listing_table import Row
from p2prl.index.run_choice import Offer
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl.protocol.listing import run_id
from p2prl_lab.crowd_report import (
    CrowdReport,
    Look,
    all_taken_after,
    as_markdown,
    came_back,
    left_after,
    lied_to,
    parts,
    sampled_after,
)
from p2prl_lab.testing.run_audit import recorded_steps
from p2prl_lab.testing.served_index import served_index
from p2prl_lab.testing.swarm_processes import LISTEN, RoleProcess, SwarmProcesses, rows, wait_until

FIRST = {"stays": 2, "pauses": 4, "unlisted": 8}
"""Groups of an update, by run that is listed from the beginning; each is named after what happens to it."""

GROUPS = FIRST | {"ends": 2, "lies": 4}
"""The same with those that are listed later."""

_LIAR = "p2prl_lab.testing.lying_learner"
_STAYS_AWAY_S = 120.0
"""For so long nobody may come back to the run that lied."""

_LOOK_S = 1.0
_START_S = 300.0
_WAIT_S = 900.0
"""Longest wait for what is measured: on a busy machine a start alone takes minutes."""
_CONFIRMED = ("delivered", "verified", "rejected", "expired")
"""States of a group in a spool that its learner has on disk."""


class DroppingIndex(IndexState):
    """An index whose operator can drop a run."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.dropped: set[str] = set()

    def rows(self) -> tuple[Row, ...]:
        """The listings that are shown."""
        return tuple(row for row in super().rows() if run_id(row.kept.opened.run) not in self.dropped)

    def runs_json(self) -> bytes:
        """Their document, made anew each time."""
        return msgspec.json.encode(runs_document(self.rows()))


@dataclass(slots=True)
class Crowd:
    """The swarm, its index, and what was seen so far."""

    folder: Path
    index: DroppingIndex
    swarm: SwarmProcesses
    ids: dict[str, str] = field(default_factory=dict)
    homes: list[Path] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)

    def watch(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> bool:
        """Look once a second, for so long or until something holds; whether it does."""
        end = time.monotonic() + seconds
        while not (done := until()) and time.monotonic() < end:
            self.looks.append(self._look())
            threading.Event().wait(_LOOK_S)
        return done

    def _look(self) -> Look:
        names = {each: name for name, each in self.ids.items()}
        serving = tuple(names.get(str(read_status(home / ANY_FILE).get("run", "")), "") for home in self.homes)
        wants = {names[run_id(row.kept.opened.run)]: Offer(row.kept.opened).wanted for row in self.index.rows()}
        kept = {name: sum(self.spooled(name).values()) for name in self.ids}
        lies = tuple(self.spooled("lies", home)["rejected"] for home in self.homes)
        return Look(time.monotonic(), serving, wants, kept, lies)

    def serves(self, run: str) -> bool:
        """Whether a volunteer serves a run, by the newest look."""
        return bool(self.looks) and run in self.looks[-1].serving

    def spools(self, run: str, home: Path | None = None) -> list[Path]:
        """Spools of a run, of all volunteers or of one."""
        homes = self.homes if home is None else [home]
        return [path for each in homes for path in each.glob(f"seat-*/{folder_of(self.ids[run])}/spool.db")]

    def spooled(self, run: str, home: Path | None = None) -> Counter[str]:
        """Groups of a run in these spools, by state."""
        found = Counter[str]()
        for spool in self.spools(run, home):
            if tables := rows(spool, "SELECT name FROM sqlite_master WHERE name = 'groups'"):
                found.update(dict(rows(spool, f"SELECT state, count(*) FROM {tables[0][0]} GROUP BY state")))  # noqa: S608
        return found


def make_runs(folder: Path) -> dict[str, str]:
    """Run folders of the crowd; their ids by name."""
    made = tiny_model(seed=3)
    made.model.save_pretrained(folder / "model")
    made.tokenizer.save_pretrained(folder / "model")
    ids = {}
    for name, groups in GROUPS.items():
        settings = preset_by_name("chain4").settings_text()
        settings = settings.replace("groups_per_update = 16", f"groups_per_update = {groups}")
        plan = RunPlan(name=name, goal=f"a run that {name}", task="chain4", model=str(folder / "model"))
        init_run(folder / name, plan, settings=settings, on_progress=lambda *_: None)
        ids[name] = run_id(open_run(folder / name).run)
    return ids


def run_crowd(
    folder: Path, *, volunteers: int, share: float, watch_s: float, updates: int, tell: Callable[[str], None]
) -> CrowdReport:
    """Run the crowd through all events."""
    index = DroppingIndex()
    with served_index(index) as url, SwarmProcesses(folder, forks=True).running() as swarm:
        crowd = Crowd(folder, index, swarm, make_runs(folder))
        for name in FIRST:
            learn(crowd, name, url, 0)
        wait_until(lambda: len(index.rows()) == len(FIRST), seconds=_START_S, what="three listings")
        tell("three runs are listed")
        options = ("--any", "--index", url, "--share", f"{share:g}", "--threads", "1", "--slots", "1", *LISTEN)
        for number in range(volunteers):
            crowd.homes.append(folder / f"home-{number}")
            swarm.start(f"volunteer-{number}", "join", *options, home=crowd.homes[-1])
        began = time.monotonic()
        runs = list(FIRST)
        crowd.watch(_WAIT_S, until=lambda: sampled_after(crowd.looks, runs, began) is not None)
        taken, sampled = all_taken_after(crowd.looks, runs, began), sampled_after(crowd.looks, runs, began)
        tell(f"every run has a volunteer after {taken} s, and a group of one after {sampled} s")
        settled = len(crowd.looks)
        crowd.watch(watch_s)
        served = parts(crowd.looks[settled:], runs)
        tell(f"parts of the volunteers' time, and of the wants: {served}")
        left: dict[str, float | None] = {"unlisted": drop(crowd, tell)}
        left["pauses"], returned = pause(crowd, url, tell)
        left["ends"] = finish(crowd, url, updates, tell)
        lie(crowd, url, tell)
        end(crowd, tell)
        states = sum((crowd.spooled(name) for name in GROUPS if name != "lies"), Counter[str]())
        return CrowdReport(
            taken_s=taken,
            sampled_s=sampled,
            parts=served,
            left_s=left,
            lied_to_s=list(lied_to(crowd.looks, "lies").values()),
            lies=crowd.spooled("lies")["rejected"],
            came_back=len(came_back(crowd.looks, "lies")),
            states=dict(sorted(states.items())),
            returned=returned,
            lost=lost_groups(crowd),
            load=os.getloadavg()[2],
        )


def learn(crowd: Crowd, name: str, url: str, updates: int) -> RoleProcess:
    """Start a run's learner."""
    return crowd.swarm.start(name, "learn", *_training(crowd, name, url, updates))


def _training(crowd: Crowd, name: str, url: str, updates: int) -> tuple[str, ...]:
    return str(crowd.folder / name), "--updates", str(updates), "--list", url, *LISTEN


def drop(crowd: Crowd, tell: Callable[[str], None]) -> float | None:
    """Drop a run's listing while it is served, until its volunteers have left; then list it again."""
    crowd.watch(_WAIT_S, until=lambda: crowd.serves("unlisted"))
    crowd.index.dropped.add(crowd.ids["unlisted"])
    began = time.monotonic()
    crowd.watch(_WAIT_S, until=lambda: left_after(crowd.looks, "unlisted", began) is not None)
    crowd.index.dropped.clear()
    left = left_after(crowd.looks, "unlisted", began)
    tell(f"the run that was not listed any more was left after {left} s")
    return left


def pause(crowd: Crowd, url: str, tell: Callable[[str], None]) -> tuple[float | None, int]:
    """Stop a learner while its run is served, and start it again; seconds until its volunteers have left, and the
    groups of theirs that it got then."""
    crowd.watch(_WAIT_S, until=lambda: crowd.serves("pauses"))
    crowd.swarm.roles["pauses"].process.send_signal(signal.SIGINT)
    began = time.monotonic()
    crowd.watch(_WAIT_S, until=lambda: left_after(crowd.looks, "pauses", began) is not None)
    left = left_after(crowd.looks, "pauses", began)
    tell(f"the run that paused was left after {left} s")
    crowd.swarm.roles["pauses"].wait(60.0)
    waiting = crowd.spooled("pauses")["generated"]
    learn(crowd, "pauses", url, 0)
    crowd.watch(_WAIT_S, until=lambda: crowd.serves("pauses"))
    crowd.watch(_WAIT_S, until=lambda: crowd.spooled("pauses")["generated"] <= 1)
    returned = max(0, waiting - crowd.spooled("pauses")["generated"])
    tell(f"{waiting} groups waited for it on disk; {returned} of them were delivered when it was back")
    return left, returned


def finish(crowd: Crowd, url: str, updates: int, tell: Callable[[str], None]) -> float | None:
    """List a run of few updates until it ends; seconds from its last update until its volunteers have left."""
    listed = time.monotonic()
    learn(crowd, "ends", url, updates)
    crowd.watch(_WAIT_S, until=lambda: crowd.serves("ends"))
    tell(f"the run that ends has a volunteer {time.monotonic() - listed:.0f} s after the start of its learner")
    if not crowd.watch(_WAIT_S, until=lambda: recorded_steps(crowd.folder / "ends") >= updates):
        return None
    began = time.monotonic()
    crowd.watch(_WAIT_S, until=lambda: left_after(crowd.looks, "ends", began) is not None)
    left = left_after(crowd.looks, "ends", began)
    tell(f"the run that ended was left after {left} s")
    return left


def lie(crowd: Crowd, url: str, tell: Callable[[str], None]) -> None:
    """List a run that rejects right groups, until those whom it lied to have left, and a while longer."""
    crowd.swarm.start("lies", *_training(crowd, "lies", url, 0), module=_LIAR)
    crowd.watch(_WAIT_S, until=lambda: bool(lied_to(crowd.looks, "lies")))
    crowd.watch(_WAIT_S, until=lambda: None not in lied_to(crowd.looks, "lies").values())
    crowd.watch(_STAYS_AWAY_S)
    crowd.watch(_WAIT_S, until=lambda: None not in lied_to(crowd.looks, "lies").values())
    tell(f"volunteers left the run that lied {list(lied_to(crowd.looks, 'lies').values())} s after its first lie")


def end(crowd: Crowd, tell: Callable[[str], None]) -> None:
    """End volunteers as their owners would, then the learners."""
    for names in ([f"volunteer-{number}" for number in range(len(crowd.homes))], list(GROUPS)):
        running = [crowd.swarm.roles[name] for name in names if crowd.swarm.roles[name].is_alive]
        for role in running:
            role.process.send_signal(signal.SIGINT)
        for role in running:
            role.wait(90.0)
    tell("all have ended")


def lost_groups(crowd: Crowd) -> list[str]:
    """Contradictions between what was seen in spools, what is in them now, and what the learners have on disk."""
    found = []
    for name in GROUPS:
        now = sum(crowd.spooled(name).values())
        if (most := max((look.kept.get(name, 0) for look in crowd.looks), default=0)) > now:
            found.append(f"{name}: {most} groups were in the spools, and {now} are")
        judged = rows(crowd.folder / name / "journal.db", "SELECT digest, state FROM groups")
        journal = {bytes(digest): state for digest, state in judged}
        for spool in crowd.spools(name):
            for digest, state in rows(spool, "SELECT digest, state FROM groups"):
                there = journal.get(bytes(digest), "")
                if state in _CONFIRMED and not there:
                    found.append(f"{name}: a group is {state} here, and its learner has none")
                if state == "verified" and there not in ("verified", "used", "unused"):
                    found.append(f"{name}: a group is verified here, and {there or 'unknown'} at its learner")
                if state == "rejected" and name != "lies":
                    found.append(f"{name}: an honest group was rejected")
    return found


def main() -> int:
    """Print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volunteers", type=int, default=5)
    parser.add_argument("--share", type=float, default=0.1, help="of the time that volunteers compute")
    parser.add_argument("--watch-s", type=float, default=120.0, help="seconds over which parts are counted")
    parser.add_argument("--updates", type=int, default=10, help="of the run that ends")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p2prl-crowd-", ignore_cleanup_errors=True) as folder:
        report = run_crowd(
            Path(folder),
            volunteers=arguments.volunteers,
            share=arguments.share,
            watch_s=arguments.watch_s,
            updates=arguments.updates,
            tell=lambda text: print(text, file=sys.stderr, flush=True),
        )
    document: dict[str, Any] = {**asdict(report), "holds": report.holds}
    print(json.dumps(document) if arguments.json else as_markdown(report), flush=True)
    for line in report.lost[:20]:
        print(line, file=sys.stderr)
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
