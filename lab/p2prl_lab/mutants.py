"""Flip operators, conditions and numbers of the product at random, and see whether the room's own tests notice.

    python -m p2prl_lab.mutants --seed 1 --count 300 --out build/mutants
    python -m p2prl_lab.mutants --room p2prl/net --count 30 --out build/mutants-net

Flips are drawn from all modules alike, so that a larger room has more of them. Each one is tried alone in `--out`, in a
copy of the last commit. The room's tests run once as they are, to see which of them execute each line; a flip then gets
those that execute its line, the fastest first. With `--near` nothing runs first, and a flip gets the files of tests
that import its module: cheaper, but it can survive where it should not. A mutant is killed when a test that can be
named fails; one that keeps a test file from being read proves nothing and is left undecided. The same command goes on
where it was stopped.
Survivors that are equal to the program for every input are for a reader to strike out.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from p2prl_lab.mutation_runs import HEAVY, Request, Runner, executed_lines, slowest_last
from p2prl_lab.mutation_sites import Site, sites
from p2prl_lab.progress_lines import say

_ROOT = Path(__file__).parents[2]
_BASELINE_S = 7200
"""Longest time of a room's tests as they are."""
_MUTANT_S = 30
"""Of the tests that a mutant gets, by the time they take without it. Flips of constants are executed by hundreds."""
_LATE = 6
"""A mutant is undecided when its tests take this many times as long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One mutant and what became of it."""

    room: str
    file: str
    flip: str
    outcome: Literal["killed", "survived", "undecided"]
    test: str
    """The test that failed first; empty for none."""
    tests: int
    """Number of tests that it was given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """What a room's tests do to the room as it is."""

    by_line: dict[str, dict[int, frozenset[str]]]
    durations: dict[str, float]
    failing: frozenset[str]
    """Tests that fail here without any mutant: they cannot kill one."""


class Mutants:
    """A folder with a copy of the commit that it began with, a baseline for each room, and the rows."""

    def __init__(self, folder: Path, *, heavy: Sequence[str] = HEAVY, quick: bool = False, near: bool = False) -> None:
        """`heavy` are the libraries that most tests import; `quick` leaves out tests that are marked as slow.

        `near` saves the baselines: a mutant gets the tests whose files import its module or are named like it.
        So it can survive where a test further off would kill it.
        """
        self.tree = folder / "tree"
        self._folder = folder
        self._rows = folder / "rows.jsonl"
        archive = folder / "commit.tar"
        if not self.tree.exists():
            self.tree.mkdir(parents=True)
            subprocess.run(["git", "-C", _ROOT, "archive", "--output", archive.resolve(), "HEAD"], check=True)
        if archive.exists():  # also over a mutant that was being tried when the last process was killed
            subprocess.run(["tar", "-x", "-f", archive, "-C", self.tree], check=True)
        self.rows = [Row(**json.loads(line)) for line in _lines(self._rows)]
        self._quick, self._is_near = quick, near
        self._passing: set[str] = set()
        """Tests known to pass without any mutant."""
        self._runner = Runner(self.tree, heavy=heavy)
        self._baselines: dict[str, Baseline] = {}
        self._changed = time.time()

    def close(self) -> None:
        """End the process that runs tests."""
        self._runner.close()

    def drawn(self, seed: int, count: int, rooms: Sequence[str]) -> list[tuple[str, Site]]:
        """`count` flips of these rooms, or of all of them where none is named, in the order of their rooms."""
        files = sorted(
            str(path.relative_to(self.tree))
            for top in ("p2prl", "client", "validator", "protocol")
            for path in (self.tree / top).rglob("*.py")
        )
        chosen = [file for file in files if not rooms or _room(file) in rooms]
        every = [(file, site) for file in chosen for site in sites((self.tree / file).read_bytes())]
        drawn = random.Random(seed).sample(every, min(count, len(every)))  # noqa: S311 - a sample, not a secret
        return sorted(drawn, key=lambda flip: _room(flip[0]))

    def tried(self, file: str, site: Site) -> Row | None:
        """The row of one mutant; None if there is one already."""
        source = (self.tree / file).read_bytes()
        flip = site.described(source)
        if any((row.file, row.flip) == (file, flip) for row in self.rows):
            return None
        tests = self._tests_near(file) if self._is_near else self._tests_of_line(file, site, source)
        outcome: Literal["killed", "survived", "undecided"] = "survived"
        failed: tuple[str, ...] = ()
        if tests:
            self._write(file, site.applied(source))
            try:
                answer = self._runner.run(Request(tests=tests, limit_s=_LATE * _MUTANT_S, quick=self._quick))
            finally:
                self._write(file, source)
            failed = answer.failed
            if answer.outcome != "passed":
                is_killed = answer.outcome == "failed" and self._passes_without(failed[0])
                outcome = "killed" if is_killed else "undecided"
        row = Row(room=_room(file), file=file, flip=flip, outcome=outcome, test="".join(failed[:1]), tests=len(tests))
        self.rows.append(row)
        with self._rows.open("a", encoding="utf-8") as out:
            out.write(json.dumps(asdict(row)) + "\n")
        return row

    def _tests_of_line(self, file: str, site: Site, source: bytes) -> tuple[str, ...]:
        """The tests that execute a statement, as many as there is time for."""
        baseline = self._baseline(_room(file))
        noticing, first = self._noticing(file, site, source, baseline)
        self._passing |= baseline.durations.keys() - baseline.failing
        return slowest_last(sorted(noticing - baseline.failing), baseline.durations, within_s=_MUTANT_S, first=first)

    def _tests_near(self, file: str) -> tuple[str, ...]:
        """Files of the room's tests that import a module or are named like it."""
        stem = Path(file).stem
        named = (self.tree / "tests" / "unit" / Path(_room(file)).name).rglob(f"test_*{stem}*.py")
        return tuple(sorted({*self._importing(file), *(str(path.relative_to(self.tree)) for path in named)}))

    def _passes_without(self, test: str) -> bool:
        """Whether a test passes without any mutant."""
        if test not in self._passing:
            answer = self._runner.run(Request(tests=(test,), limit_s=_LATE * _MUTANT_S))
            self._passing |= {test} if answer.outcome == "passed" else set()
        return test in self._passing

    def _noticing(self, file: str, site: Site, source: bytes, baseline: Baseline) -> tuple[set[str], set[str]]:
        """(Tests that execute the statement, those of them to begin with).

        All of the room for a statement that runs while its module is imported; first those that execute a line which
        names what it defines. Where no test executes it as far as is seen, all too, and first the files of tests that
        import the module: they may start processes that do, or have it compiled.
        """
        by_line = baseline.by_line.get(file, {})
        statement = _statement(source, site)
        found = set().union(*(by_line.get(line, ()) for line in range(statement.lineno, site.line + 1)))
        if not found:
            importing = set(self._importing(file))
            return importing | set(baseline.durations), importing
        if "" not in found:
            return found, set()
        return set(baseline.durations), set().union(*self._naming(_defined(statement), baseline)) - {""}

    def _naming(self, names: Sequence[str], baseline: Baseline) -> Iterator[frozenset[str]]:
        """The tests of each line of the product that has one of these names."""
        if not names:
            return
        naming = re.compile(rf"\b({'|'.join(names)})\b")
        for file, by_line in baseline.by_line.items():
            for number, line in enumerate((self.tree / file).read_text(encoding="utf-8").splitlines(), 1):
                if number in by_line and naming.search(line):
                    yield by_line[number]

    def _importing(self, file: str) -> Iterator[str]:
        """Files among the room's tests that import a module."""
        package, _, module = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__").rpartition(".")
        importing = re.compile(rf"^from (p2prl\.)?{package}(\.{module} import| import .*\b{module}\b)", re.MULTILINE)
        for test in _tests_of(_room(file), self.tree):
            path = self.tree / test
            for each in [path] if path.suffix else sorted(path.rglob("test_*.py")):
                if importing.search(each.read_text(encoding="utf-8")):
                    yield str(each.relative_to(self.tree))

    def _write(self, file: str, source: bytes) -> None:
        """Change a file, with a time of its own: bytecode is known by whole seconds and the size of its source."""
        path = self.tree / file
        path.write_bytes(source)
        self._changed += 2.0
        os.utime(path, (self._changed, self._changed))

    def _baseline(self, room: str) -> Baseline:
        """The room's tests as they are, from disk if they have run."""
        if room not in self._baselines:
            recorded = self._folder / f"{room.replace('/', '.')}.coverage"
            timed = recorded.with_suffix(".json")
            if not timed.exists():
                say(f"{room}: its tests as they are")
                recorded.unlink(missing_ok=True)
                tests = _tests_of(room, self.tree)
                answer = self._runner.run(
                    Request(tests=tests, coverage=str(recorded.resolve()), limit_s=_BASELINE_S, quick=self._quick)
                )
                if answer.outcome in ("unread", "late"):
                    raise RuntimeError(f"the tests of {room} have no end: {answer.outcome}")
                timed.write_text(json.dumps({"durations": answer.durations, "failing": answer.failed}))
            known = json.loads(timed.read_text())
            self._baselines[room] = Baseline(
                by_line=executed_lines(recorded, self.tree),
                durations=known["durations"],
                failing=frozenset(known["failing"]),
            )
        return self._baselines[room]


def main() -> int:
    """Try the mutants and print the share of those decided that were killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300, help="mutants, of all rooms or the chosen ones")
    parser.add_argument(
        "--room", action="append", default=[], help="only of this one, such as p2prl/net; may be given again"
    )
    parser.add_argument("--quick", action="store_true", help="leave out the tests that make test-fast leaves out")
    parser.add_argument("--near", action="store_true", help="give a mutant only files of tests that import its module")
    parser.add_argument("--out", type=Path, required=True, help="folder to work in, and to go on from")
    given = parser.parse_args()
    mutants = Mutants(given.out, quick=given.quick, near=given.near)
    try:
        drawn = mutants.drawn(given.seed, given.count, given.room)
        if not drawn:
            parser.error(f"no module of the product is in {', '.join(given.room)}")
        for number, (file, site) in enumerate(drawn, 1):
            row = mutants.tried(file, site)
            if row is not None:
                say(f"{number}/{len(drawn)} {row.file}:{row.flip}: {row.outcome} {row.test}")
    finally:
        mutants.close()
    _print_report(mutants.rows)
    return 0


def _room(file: str) -> str:
    """The package of a module: `p2prl/net`, `client`, or `p2prl` for a module beside the packages."""
    parts = Path(file).parts
    return "/".join(parts[: 2 if parts[0] == "p2prl" and len(parts) > 2 else 1])


def _tests_of(room: str, tree: Path) -> tuple[str, ...]:
    """The folders of the room's own tests, and properties that import from it."""
    package = room.replace("/", ".")
    name = Path(room).name
    own = [tree / "tests" / "unit" / name, tree / "tests" / name]
    first = own if room != "p2prl" else sorted((tree / "tests" / "unit").glob("test_*.py"))
    importing = re.compile(rf"^from (p2prl\.)?{re.escape(package)}[. ]", re.MULTILINE)
    properties = sorted((tree / "tests" / "property").glob("test_*.py"))
    found = [*first, *(path for path in properties if importing.search(path.read_text(encoding="utf-8")))]
    return tuple(str(path.relative_to(tree)) for path in found if path.exists())


def _statement(source: bytes, site: Site) -> ast.stmt:
    """The innermost statement that a flip is in."""
    within = (
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= site.line <= (node.end_lineno or node.lineno)
    )
    return max(within, key=lambda node: node.lineno)


def _defined(statement: ast.stmt) -> list[str]:
    """Names of constants, a function or a class that a statement defines."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            return [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        case ast.AnnAssign(target=ast.Name(name)):
            return [name]
    return []


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def _print_report(rows: Sequence[Row]) -> None:
    for room in sorted({row.room for row in rows}):
        counted = Counter(row.outcome for row in rows if row.room == room)
        print(f"{room:18}", ", ".join(f"{counted[each]:3} {each}" for each in ("killed", "survived", "undecided")))
    for row in rows:
        if row.outcome == "survived":
            print(f"survived  {row.file}:{row.flip}")
    outcomes = Counter(row.outcome for row in rows)
    killed, decided = outcomes["killed"], outcomes["killed"] + outcomes["survived"]
    if decided:
        print(f"{killed} of {decided} decided mutants killed: {killed / decided:.3f}")


if __name__ == "__main__":
    sys.exit(main())
