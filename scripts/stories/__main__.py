"""Play ten stories of people who lend a machine, in real terminals, and write down what they saw.

    python -m scripts.stories                          # writes docs/stories.md
    python -m scripts.stories --only wrong-link,driver-breaks --out /tmp/stories.md

A learner, another volunteer and the person's own commands run on loopback, in tmux. The game needs Xvfb, openbox and
xterm, the full disk needs root; where something is missing, its story says so. Exits 1 when a story did not go as told.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from p2prl.testing.swarm_processes import SwarmProcesses
from scripts.stories.stage import Screen, Stage
from scripts.stories.stories import STORIES, UnplayableError

_OUT = Path(__file__).resolve().parents[2] / "docs" / "stories.md"

_OPENING = """\
# Ten stories

What people see who lend a machine, when things happen. Played with the real commands by `python -m scripts.stories`;
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
    pages, failed = [_OPENING], 0
    with tempfile.TemporaryDirectory(prefix="p2prl-stories-") as folder:
        swarm = SwarmProcesses(Path(folder) / "swarm")
        with swarm.running():
            stage = Stage(Path(folder), swarm)
            stage.prepare()
            for name in STORIES:
                if name in chosen:
                    print(f"{name} …", file=sys.stderr, flush=True)
                    page, went_wrong = _played(name, stage)
                    pages.append(page)
                    failed += went_wrong
    arguments.out.write_text("\n".join(pages), encoding="utf-8")
    print(f"{arguments.out}: {len(chosen)} stories, {failed} not as told", file=sys.stderr)
    return 1 if failed else 0


def _played(name: str, stage: Stage) -> tuple[str, bool]:
    """A story's page, and whether it did not go as told."""
    story = STORIES[name]
    title = (story.__doc__ or "").splitlines()[0].rstrip(".")
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
