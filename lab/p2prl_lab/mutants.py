"""Flip operators, conditions and numbers of the product at random, and see whether the room's own tests notice.

    python -m p2prl_lab.mutants --seed 1 --count 100 --out mutants.jsonl
    python -m p2prl_lab.mutants --room p2prl/net --count 30

Flips are drawn from all modules alike, so that a larger room has more of them. Each one is tried alone in a copy of the
last commit. A mutant is killed when a test of the room fails that can be named; one that keeps a test file from being
read proves nothing and is left undecided. Rows are appended to `--out`: the same command goes on where it was stopped.
Survivors that are equal to the program for every input are for a reader to strike out.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from p2prl_lab.mutation_sites import Site, sites
from p2prl_lab.progress_lines import say

_ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"^(?:FAILED|ERROR) (\S+::\S+)", re.MULTILINE)
_LONGEST_S = 1800
"""Of a mutant's tests: a test that hangs is stopped, and so named, long before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One mutant and what became of it."""

    room: str
    file: str
    flip: str
    outcome: Literal["killed", "survived", "undecided"]
    test: str
    """The test that failed first; empty for none."""


def main() -> int:
    """Try the mutants, print the share of those decided that were killed; exit 1 where a room's tests fail as it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=300, help="mutants, of all rooms or the chosen ones")
    parser.add_argument("--room", action="append", default=[], help="only of this folder; may be given again")
    parser.add_argument("--out", type=Path, default=None, help="JSON Lines file of rows to append to")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p2prl-mutants-") as name:
        tree = Path(name)
        _copy_commit(tree)
        drawn = _drawn(tree, given.seed, given.count, given.room)
        if not drawn:
            parser.error(f"no module of the product is in {', '.join(given.room)}")
        rows = _rows_of(given.out)
        known = {(row.file, row.flip) for row in rows}
        for room in sorted({_room(file) for file, _ in drawn} - {row.room for row in rows}):
            say(f"{room}: its tests as they are")
            failed = _first_failure(tree, _tests_of(room, tree))
            if failed is not None:
                print(f"{room}: {failed or 'its tests cannot be read'} fails without any mutant", file=sys.stderr)
                return 1
        for number, (file, site) in enumerate(drawn, 1):
            row = _tried(tree, file, site, known)
            if row is None:
                continue
            rows.append(row)
            say(f"{number}/{len(drawn)} {row.file}:{row.flip}: {row.outcome} {row.test}")
            if given.out is not None:
                with given.out.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(asdict(row)) + "\n")
    _print_report(rows)
    return 0


def _copy_commit(tree: Path) -> None:
    archive = subprocess.run(["git", "-C", _ROOT, "archive", "HEAD"], stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)


def _drawn(tree: Path, seed: int, count: int, rooms: Sequence[str]) -> list[tuple[str, Site]]:
    files = sorted(
        str(path.relative_to(tree))
        for top in ("p2prl", "client", "validator", "protocol")
        for path in (tree / top).rglob("*.py")
    )
    chosen = [file for file in files if not rooms or any(file.startswith(f"{room.rstrip('/')}/") for room in rooms)]
    every = [(file, site) for file in chosen for site in sites((tree / file).read_bytes())]
    return random.Random(seed).sample(every, min(count, len(every)))  # noqa: S311 - a sample, not a secret


def _room(file: str) -> str:
    """The package of a module: `p2prl/net`, `client`, or `p2prl` for a module beside the packages."""
    parts = Path(file).parts
    return "/".join(parts[: 2 if parts[0] == "p2prl" and len(parts) > 2 else 1])


def _tests_of(room: str, tree: Path) -> list[str]:
    """The folder of the room's unit tests, and simulations and properties that import from it."""
    package = room.replace("/", ".")
    own = tree / "tests" / "unit" / Path(room).name
    first = [own] if room != "p2prl" else sorted((tree / "tests" / "unit").glob("test_*.py"))
    shared = [path for folder in ("property", "sim") for path in sorted((tree / "tests" / folder).glob("test_*.py"))]
    importing = re.compile(rf"^from {re.escape(package)}[. ]", re.MULTILINE)
    found = [*first, *(path for path in shared if importing.search(path.read_text(encoding="utf-8")))]
    return [str(path.relative_to(tree)) for path in found if path.exists()]


def _tried(tree: Path, file: str, site: Site, known: set[tuple[str, str]]) -> Row | None:
    """The row of one mutant; None if there is one already."""
    path = tree / file
    source = path.read_bytes()
    flip = site.described(source)
    if (file, flip) in known:
        return None
    room = _room(file)
    path.write_bytes(site.applied(source))
    try:
        failed = next((each for each in _failures(tree, file, room) if each is not None), None)
    finally:
        path.write_bytes(source)
    outcome: Literal["killed", "survived", "undecided"] = "killed" if failed else "survived"
    return Row(room=room, file=file, flip=flip, outcome="undecided" if failed == "" else outcome, test=failed or "")


def _failures(tree: Path, file: str, room: str) -> Iterator[str | None]:
    """What failed of the tests that import the module, which notice most, then of the room's others."""
    module = ".".join(Path(file).with_suffix("").parts).removesuffix(".__init__")
    importing = re.compile(rf"^from {re.escape(module)} import", re.MULTILINE)
    every = [
        path
        for test in _tests_of(room, tree)
        for path in ([tree / test] if test.endswith(".py") else sorted((tree / test).rglob("test_*.py")))
    ]
    near = [path for path in every if importing.search(path.read_text(encoding="utf-8"))]
    for group in (near, [path for path in every if path not in near]):
        yield _first_failure(tree, [str(path.relative_to(tree)) for path in group])


def _first_failure(tree: Path, tests: Sequence[str]) -> str | None:
    """The test that fails first, "" where something else ends the tests, None where none fails."""
    if not tests:
        return None
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tree), str(tree / "lab")])}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_LONGEST_S,
        )
    except subprocess.TimeoutExpired:
        return ""
    if done.returncode in (0, 5):  # 5: every test was left out
        return None
    named = _NAMED.search(done.stdout)
    return named[1] if named and done.returncode == 1 else ""


def _rows_of(out: Path | None) -> list[Row]:
    if out is None or not out.exists():
        return []
    return [Row(**json.loads(line)) for line in out.read_text(encoding="utf-8").splitlines()]


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
