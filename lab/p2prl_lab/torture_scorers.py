"""Attack the scorer pool with hostile answers and a thousand fatal ones, beside honest authors; print figures as JSON.

    python -m p2prl_lab.torture_scorers
    python -m p2prl_lab.torture_scorers --kills 100 --honest 2000

Uses the pool and the settings of `p2prl learn`. Every hostile answer also goes to the scorers of each library that is
installed; of reasoning-gym, to a tenth of the datasets, so that all are attacked. Exits 1 when an answer escaped,
earned the reward of a right one, took over 3 seconds, or cost honest authors over 20 % of their throughput.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import threading
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from p2prl.errors import ConfigError, MachineError
from p2prl.tasks.sandbox.pool import ScorerPool, TaskScoring
from p2prl.tasks.scorers.reasoning_gym_scorer import EXECUTES_ANSWERS, TAKES_ANY_ANSWER
from p2prl.tasks.scorers.row_sources import rows as library_rows
from p2prl.tasks.scorers.spec import Reward, Scoring, scoring_spec
from p2prl_lab.testing.hostile_answers import HostileAnswer, Kind
from p2prl_lab.testing.hostile_scorer import hostile_scorer
from p2prl_lab.testing.sandbox_attack import ROW, Attack, Outcome, attack, sandbox_processes

_SLOWEST_WANTED_S = 3.0
_RATIO_WANTED = 0.80
_WINDOW_S = 4.0
"""Length of one measurement of honest authors: alone and under attack in turn, so that other load hits both alike."""

_GROUP = 16
_FEWER = 10  # third-party answers are timed this many times fewer
_HONEST_ACCOUNTS = 8
_DATASETS_PER_ANSWER = 10  # each answer goes to one of this many datasets of reasoning-gym
_FORGED = 0.99
"""Reward from which a hostile answer counts as right. Some datasets give less for any text of the right form."""

_TASKSET = """\
import verifiers.v1 as vf

class Data(vf.TaskData):
    answer: str

class Question(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def correct(self, task, trace) -> float:
        return float(trace.last_reply == task.answer)

class HostileSet(vf.Taskset[Question, vf.TasksetConfig]):
    def load(self):
        yield Question(Data(prompt="6*7=", answer="42"), self.config.task)

__all__ = ["HostileSet"]
"""
_FATAL = ("import time; time.sleep(1000)", "import os; os._exit(1)")


@dataclass
class _Attacker:
    """A thread that sends hostile answers while `go` is set: all of them once, then fatal ones until enough died."""

    pool: ScorerPool
    attack: Attack
    kills: int
    go: threading.Event = field(default_factory=threading.Event)
    busy: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self) -> None:
        """Attack to the end."""
        try:
            for task in ("built in", "evaluating"):
                for number, answer in enumerate(self.attack.answers):
                    self._score(task, answer, b"%s %d" % (task.encode(), number))
            number = 0
            while self.pool.statistics.overruns < self.kills:
                answer = HostileAnswer(Kind.DISRUPTION, _FATAL[number % len(_FATAL)])
                self._score("evaluating", answer, b"fatal %d" % (number % len(_FATAL)))
                number += 1
        finally:
            self.done.set()

    def _score(self, task: str, answer: HostileAnswer, account: bytes) -> None:
        self.go.wait()
        with self.busy:
            began = time.monotonic()
            scored = self.pool.score(task, ROW, [(answer.text, True)], account=account)
            self.outcomes.append(Outcome(answer, scored[0], time.monotonic() - began))


def main() -> int:
    """Run the attack and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="workers that answers hang or crash")
    parser.add_argument("--honest", type=int, default=10_000, help="honest answers to time alone")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as code,
        tempfile.TemporaryDirectory() as folder,
        attack(Path(folder)) as attacked,
    ):
        exact = scoring_spec(Scoring(rewards=(Reward(scorer="exact"),)))
        tasks = {"built in": TaskScoring(exact), "evaluating": hostile_scorer(Path(code))}
        with ScorerPool(tasks) as pool:
            figures = _measure(pool, attacked, kills=arguments.kills, honest=arguments.honest)
        print(json.dumps(figures, sort_keys=True), file=sys.stderr)  # the libraries take minutes more
        figures["libraries"] = libraries = [*_attack_libraries(attacked, Path(code))]
        figures["processes_left"] = len(sandbox_processes(os.getpid()))
    print(json.dumps(figures, indent=2, sort_keys=True))
    held = (
        not figures["escapes"]
        and not figures["processes_left"]
        and figures["slowest_answer_s"] <= _SLOWEST_WANTED_S  # type: ignore[operator]
        and figures["throughput_ratio"] >= _RATIO_WANTED  # type: ignore[operator]
        and not any(library["forged"] or library["escapes"] for library in libraries)
        and all(library["slowest_answer_s"] <= _SLOWEST_WANTED_S for library in libraries)
    )
    return 0 if held else 1


def _measure(pool: ScorerPool, attacked: Attack, *, kills: int, honest: int) -> dict[str, object]:
    third_party = honest // _FEWER
    seconds = {"built in": _honest(pool, "built in", honest), "evaluating": _honest(pool, "evaluating", third_party)}
    attacker = _Attacker(pool, attacked, kills)
    thread = threading.Thread(target=attacker.run)
    thread.start()
    counted, spent = [0, 0], [0.0, 0.0]  # alone, under attack
    while not attacker.done.is_set():
        attacker.go.clear()
        with attacker.busy:  # the answer under way ends first
            _measure_window(pool, counted, spent, 0)
        attacker.go.set()
        _measure_window(pool, counted, spent, 1)
        print(f"{pool.statistics.overruns} of {kills} workers killed", file=sys.stderr)
    thread.join()
    alone, attacked_rate = (answers / window_s for answers, window_s in zip(counted, spent, strict=True))
    return {
        "protection": str(pool.protection),
        "hostile_answers": len(attacked.answers),
        "escapes": attacked.escapes(attacker.outcomes),
        "kills_survived": pool.statistics.overruns,
        "slowest_answer_s": round(max(outcome.seconds for outcome in attacker.outcomes), 3),
        "honest_answers_per_s": round(alone, 1),
        "honest_answers_per_s_under_attack": round(attacked_rate, 1),
        "throughput_ratio": round(attacked_rate / alone, 3),
        "seconds_for_honest_answers": {
            f"{honest} built in": round(seconds["built in"], 2),
            f"{third_party} third-party": round(seconds["evaluating"], 2),
        },
    }


def _attack_libraries(attacked: Attack, code: Path) -> Iterator[dict[str, Any]]:
    """Figures of each installed library whose scorers take the corpus."""
    for name, rows in _library_rows(code).items():
        with ScorerPool({name: TaskScoring(scoring_spec(Scoring(rewards=(_library_reward(name),))))}) as pool:
            outcomes: list[Outcome] = []
            forged: list[str] = []
            for number, answer in enumerate(attacked.answers):
                for row in rows[number % _DATASETS_PER_ANSWER :: _DATASETS_PER_ANSWER] if len(rows) > 1 else rows:
                    began = time.monotonic()
                    scored = pool.score(name, row, [(answer.text, True)], account=b"%d" % number)
                    outcomes.append(Outcome(answer, scored[0], time.monotonic() - began))
                    if scored[0].value >= _FORGED and not _is_right(answer.text, row):
                        forged.append(answer.text)
                print(f"{name}: {number + 1} of {len(attacked.answers)} answers", file=sys.stderr)
        yield {
            "library": name,
            "rows": len(rows),
            "answers_scored": len(outcomes),
            "forged": forged,
            "escapes": attacked.traces(outcomes),
            "slowest_answer_s": round(max(outcome.seconds for outcome in outcomes), 3),
        }


def _is_right(text: str, row: Mapping[str, Any]) -> bool:
    """Whether the text is the row's answer and nothing else that can be seen: `42` and a byte order mark is 42."""
    seen = "".join(character for character in text if not unicodedata.category(character).startswith("C"))
    return seen.strip() == str(row.get("answer"))


def _library_reward(name: str) -> Reward:
    return Reward(scorer=name, options={"taskset": "hostile_set"} if name == "verifiers" else {})


def _library_rows(code: Path) -> dict[str, list[dict[str, Any]]]:
    """Rows to attack, for each library that is installed: of reasoning-gym, one of each dataset that `init` takes."""
    rows: dict[str, list[dict[str, Any]]] = {}
    if importlib.util.find_spec("math_verify"):
        rows["math-verify"] = [ROW]
    if importlib.util.find_spec("reasoning_gym"):
        datasets = importlib.import_module("reasoning_gym.factory").DATASETS
        refused = EXECUTES_ANSWERS | TAKES_ANY_ANSWER | {"composite"}
        names = sorted(name for name in datasets if name not in refused)
        rows["reasoning-gym"] = [*_first_rows(names)]
    if importlib.util.find_spec("verifiers"):
        installed = code / "site-packages"  # a scorer reads installed packages, not a project's folders
        installed.mkdir()
        (installed / "hostile_set.py").write_text(_TASKSET)
        sys.path.insert(0, str(installed))
        rows["verifiers"] = [*library_rows("verifiers:hostile_set")]
    return rows


def _first_rows(datasets: Sequence[str]) -> Iterator[dict[str, Any]]:
    for name in datasets:
        try:
            yield from library_rows(f"reasoning-gym:{name}?size=1&seed=1")
        except (ConfigError, MachineError) as error:  # a few need files or a network that is not there
            print(f"{name}: {error}", file=sys.stderr)


def _measure_window(pool: ScorerPool, counted: list[int], spent: list[float], which: int) -> None:
    began = time.monotonic()
    while time.monotonic() - began < _WINDOW_S:
        counted[which] += _honest_group(pool, "built in", counted[which])
    spent[which] += time.monotonic() - began


def _honest(pool: ScorerPool, task: str, answers: int) -> float:
    """Seconds for this many honest answers, one group at a time."""
    began = time.monotonic()
    scored = 0
    while scored < answers:
        scored += _honest_group(pool, task, scored)
    return time.monotonic() - began


def _honest_group(pool: ScorerPool, task: str, number: int) -> int:
    """Have a group scored; its number of answers. The scores must be right, whatever happens beside it."""
    right, wrong = ("42", "41") if task == "built in" else ("result = '42'", "result = '41'")
    account = b"honest %d" % (number // _GROUP % _HONEST_ACCOUNTS)
    scores = pool.score(task, ROW, [(right, True), (wrong, True)] * (_GROUP // 2), account=account)
    assert [score.value for score in scores] == [1.0, 0.0] * (_GROUP // 2), scores
    return _GROUP


if __name__ == "__main__":
    sys.exit(main())
