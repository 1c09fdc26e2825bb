"""Play ten stories of people who lend a machine, in real terminals, and write down what they saw.

    python -m p2prl_lab.stories                          # writes docs/stories.md
    python -m p2prl_lab.stories --only wrong-link,driver-breaks      # the others stay as they are there

A learner, another volunteer and the person's own commands run on loopback, in tmux. The game needs Xvfb, openbox and
xterm, the full disk needs root; where something is missing, its story says so. Exits 1 when a story did not go as told.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from p2prl_lab.stories.stage import Screen, Stage
from p2prl_lab.stories.stories import STORIES, UnplayableError
from p2prl_lab.testing.swarm_processes import SwarmProcesses

_OUT = Path(__file__).resolve().parents[3] / "docs" / "stories.md"

_OPENING = """\
# Ten stories

What people see who lend a machine, when things happen. Played with the real commands by `python -m p2prl_lab.stories`;
nothing below was written by hand. Terminals have 80 columns.
"""


def main() -> int:
    """Play and write. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(STORIES), help="which, by name (default: all)")
    parser.add_argument("--out", type=Path, default=_OUT)
    arguments = parser.parse_args()
    chosen = arguments.only.split(",")
    if unknown := sorted(set(chosen).difference(STORIES)):
        parser.error(f"unknown: {', '.join(unknown)}")
    pages, failed = _kept(arguments.out), 0
    with tempfile.TemporaryDirectory(prefix="p2prl-stories-") as folder:
        swarm = SwarmProcesses(Path(folder) / "swarm")
        with swarm.running():
            stage = Stage(Path(folder), swarm)
            stage.prepare()
            for name in STORIES:
                if name in chosen:
                    print(f"{name} …", file=sys.stderr, flush=True)
                    page, went_wrong = _played(name, stage)
                    pages[name] = page
                    failed += went_wrong
    told = [pages[name] for name in STORIES if name in pages]
    arguments.out.write_text("\n".join([_OPENING, *told]), encoding="utf-8")
    print(f"{arguments.out}: {len(chosen)} stories, {failed} not as told", file=sys.stderr)
    return 1 if failed else 0


def _title(name: str) -> str:
    return (STORIES[name].__doc__ or "").splitlines()[0].rstrip(".")


def _kept(out: Path) -> dict[str, str]:
    """The pages of stories that were played before, by name."""
    parts = out.read_text(encoding="utf-8").split("\n## ")[1:] if out.exists() else []
    by_title = {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in parts}
    return {name: by_title[_title(name)] for name in STORIES if _title(name) in by_title}


def _played(name: str, stage: Stage) -> tuple[str, bool]:
    """A story's page, and whether it did not go as told."""
    story, title = STORIES[name], _title(name)
    try:
        screens = story(stage)
    except UnplayableError as reason:
        return f"## {title}\n\nNot played: {reason}.\n", False
    except AssertionError as error:
        print(error, file=sys.stderr)
        return f"## {title}\n\nDid not go as told.\n", True
    return f"## {title}\n\n" + "\n".join(map(_page, screens)), False


def _page(screen: Screen) -> str:
    return f"*{screen.moment}:*\n\n```text\n{screen.text.strip(chr(10))}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
