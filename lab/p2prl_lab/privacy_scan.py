"""Scan what a learner, a volunteer and a validator write, print and serve for addresses of peers that are not listed.

    python -m p2prl_lab.privacy_scan [--minutes 10] [--json]          # exits with 1 when anything names one

Each role has a loopback address of its own. The link, the boards of the run folder and of the swarm, and the index that
lists the run are read every few seconds, all pages, answers and files at the end. Files named `peers` are left out: a
role dials from them.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from p2prl.config.new_run import init_run
from p2prl.config.presets import preset_by_name
from p2prl.learner.new_run_plan import RunPlan
from p2prl.models.small_models.tiny_models import tiny_model
from p2prl_lab.testing.address_scan import Document, Place, board_documents, index_documents, strange_places
from p2prl_lab.testing.swarm_processes import RoleProcess, SwarmProcesses, status_of, wait_until

_LEARNER, _VOLUNTEER, _VALIDATOR = "127.0.0.1", "127.0.0.2", "127.0.0.3"
_PATIENCE_S = 300.0
_LOOK_S = 10.0
_PRIVATE = frozenset({"peers", "peers.new"})
"""Files by which a role finds the others again: they hold their addresses, and nobody is shown them."""


def scan(folder: Path, minutes: float) -> tuple[list[str], int]:
    """Run the roles for so long; returns what names an address, and the number of documents that were read."""
    run, swarm = _make_run(folder), SwarmProcesses(folder / "terminals")
    found: set[str] = set()
    read = 0
    with swarm.running():
        index = _url(swarm.start("index", "index", "serve", "--listen", "127.0.0.1:0"))
        swarm.start("learner", "learn", str(run), "--updates", "0", "--list", index, *_at(_LEARNER))
        link = wait_until(
            lambda: (run / "link").exists() and (run / "link").read_text().strip(), seconds=_PATIENCE_S, what="a link"
        )
        boards = [
            swarm.start("folder-board", "board", str(run), "--port", "0"),
            swarm.start("board", "board", link, "--port", "0", *_at(_LEARNER), home=folder / "board"),
        ]
        homes = {verb: folder / verb for verb in ("join", "validate")}
        swarm.start("join", "join", link, "--threads", "1", *_at(_VOLUNTEER), home=homes["join"])
        swarm.start("validate", "validate", link, "--rate", "1", *_at(_VALIDATOR), home=homes["validate"])
        urls = [_url(board) for board in boards]
        wait_until(
            lambda: status_of(homes["validate"]).get("verdicts_passed"), seconds=_PATIENCE_S, what="the first verdict"
        )
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            looked_at = time.monotonic()
            documents = [Document("link", (run / "link").read_bytes()), *board_documents(urls[0], most=1)]
            documents += index_documents(index, _VOLUNTEER)
            found |= set(strange_places(documents, [Place(_LEARNER)]))
            read += len(documents)
            time.sleep(max(0.0, looked_at + _LOOK_S - time.monotonic()))
        served = [document for url in urls for document in board_documents(url)]
    written = list(_written(folder))
    found |= set(strange_places([*served, *written], [Place(_LEARNER)]))
    return sorted(found), read + len(served) + len(written)


def _written(folder: Path) -> Iterator[Document]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in _PRIVATE:
            yield Document(str(path.relative_to(folder)), path.read_bytes())


def _make_run(folder: Path) -> Path:
    loaded = tiny_model(seed=3)
    loaded.model.save_pretrained(folder / "model")
    loaded.tokenizer.save_pretrained(folder / "model")
    plan = RunPlan(name="scan", goal="a scan for addresses", task="chain4", model=str(folder / "model"))
    init_run(folder / "run", plan, settings=preset_by_name("chain4").settings_text(), on_progress=lambda *_: None)
    return folder / "run"


def _at(host: str) -> tuple[str, str]:
    return "--listen", f"/ip4/{host}/tcp/0"


def _url(board: RoleProcess) -> str:
    found = wait_until(
        lambda: re.search(r"http://127\.0\.0\.1:\d+", board.log), seconds=_PATIENCE_S, what="the board's page"
    )
    return str(found[0])


def main() -> None:
    """Scan, print what names an address, and exit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="p2prl-scan-") as folder:
        found, read = scan(Path(folder), arguments.minutes)
    lines = [json.dumps({"documents": read, "named": found})] if arguments.json else [*found, f"{read} documents read"]
    print("\n".join(lines))
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
