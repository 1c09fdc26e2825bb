"""Read board and index as people do who need more than eyes and a fast line: axe-core, the console, bytes of a visit.

    python -m p2prl_lab.board_access           # exits with 1 on a violation, a console error or a heavy first load

Needs chromium on PATH, and in a virtual environment of your own beside p2prl: pip install playwright axe-core-python.
Every page is opened at 390 and 1280 pixels, light and dark, and all that unfolds is unfolded: a board's of a simulated
run, and an index's with runs of every state and the longest texts. axe-core checks all its rules.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from p2prl.clock import SystemClock
from p2prl.index.index_state import IndexState
from p2prl.index.listing_table import HERE
from p2prl.index.people_totals import Contribution, RunPart
from p2prl.protocol.digests import digest
from p2prl.protocol.listing import MAX_TEXT_BYTES, State
from p2prl.scoreboard.web.service import BoardServer
from p2prl_lab.simulated_board import simulated_source
from p2prl_lab.testing.listed_runs import ListedRun, many_runs
from p2prl_lab.testing.sample_ledgers import identity
from p2prl_lab.testing.served_index import served_index

WIDTHS = (390, 1280)
SCHEMES = ("light", "dark")

MOST_BYTES = 120_000
"""Largest first load of a page, as it travels: with its styles, script and icon."""

_COMPLAINTS = ("error", "warning")
"""Kinds of console messages that a visitor's browser should not show."""

SOMEBODY = identity("ann").peer_id

INDEX_PAGES = (
    "/",
    "/?q=longest",
    "/?q=nobody",
    "/?show=48",
    "/people",
    "/people?q=nobody",
    f"/people/{SOMEBODY}",
    "/people/nobody",
)

_FIRST_MS, _LAST_MS = 1_790_000_000_000, 1_791_000_000_000

_STATES: tuple[tuple[str, State, int | None], ...] = (
    ("needy", "running", 5),
    ("new", "running", None),
    ("served", "running", 0),
    ("rests", "paused", 3),
    ("over", "ended", 0),
)
"""Runs by name, state and what they miss."""

_SETTLED_MS = 600
"""A page's own script has run, and its event stream is open."""


@contextmanager
def served() -> Iterator[str]:
    """The address of a board of the simulated run."""
    board, ready = BoardServer(simulated_source(), host="127.0.0.1", port=0), threading.Event()
    thread = threading.Thread(target=board.serve, args=(lambda _: ready.set(),))
    thread.start()
    try:
        ready.wait()
        yield board.url
    finally:
        board.stop()
        thread.join()


def shown_index() -> IndexState:
    """An index with a run of every kind, one of the longest words, and more than fit one page."""
    owners = frozenset({identity("learner").peer_id})
    state, now, word = IndexState(SystemClock(), owners=owners), time.time(), "w" * MAX_TEXT_BYTES
    runs = [(ListedRun(name, name), name_state, missing) for name, name_state, missing in _STATES]
    longest = (("goal", word), ("content_policy", word), ("base_model", word))
    runs.append((ListedRun("longest" + "-" * 57, "longest", longest), "running", 1))
    runs += [(run, "running", 2) for run in many_runs(30)]
    for run, run_state, missing in runs:
        state.offer(run.signed(now=now, state=run_state, missing=missing), run.manifest_raw, HERE)
    for part in shown_parts():
        state.people.note(part)
    return state


def shown_parts() -> list[RunPart]:
    """Runs that count with more people than fit one page, one that does not, and one that contradicts itself."""
    given = Contribution(tokens=1_234_567, rechecked_tokens=5_000, groups=890, first_ms=_FIRST_MS, last_ms=_LAST_MS)
    everybody = {identity(f"person {number}").public_key: given for number in range(40)}
    longest, ann = "longest" + "-" * 57, identity("ann").public_key
    return [
        RunPart(
            run=digest("p2prl/shown-run", name.encode()),
            name=name,
            owner=identity(owner).peer_id,
            parameters=12_000_000,
            height=9,
            is_finished=owner == "learner",
            incident=incident,
            people={**everybody, ann: given._replace(tokens=number * given.tokens)},
        )
        for number, (name, owner, incident) in enumerate(
            [
                ("sums", "learner", ""),
                (longest, "learner", ""),
                ("of others", "somebody", ""),
                ("forked", "learner", "two"),
            ],
            1,
        )
    ]


def visit(browser: Any, axe: str, url: str, width: int, scheme: str) -> dict[str, Any]:
    """Open a page as a new visitor: what axe-core and the console say, and the bytes that traveled."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    errors: list[str] = []
    loaded: list[float] = []
    page.on("console", lambda message: errors.append(message.text) if message.type in _COMPLAINTS else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    devtools = context.new_cdp_session(page)
    devtools.send("Network.enable")
    devtools.on("Network.loadingFinished", lambda event: loaded.append(event["encodedDataLength"]))
    answer = page.goto(url, wait_until="load")
    if answer.status == 404:  # the console says so, as it should
        errors[:] = [text for text in errors if "404" not in text]
    page.wait_for_timeout(_SETTLED_MS)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true })")
    wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    page.evaluate(axe)  # the console's way in: the page's own policy forbids a script tag, and stays on
    found = page.evaluate("axe.run(document)")
    context.close()
    violations = [
        f"{rule['id']} ({rule['impact']}): {node['html'][:120]}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]
    return {
        "violations": violations,
        "errors": errors,
        "bytes": int(sum(loaded)),
        "passed": len(found["passes"]),
        "wider_px": wider,
    }


def checked(open_page: Callable[[str, int, str], dict[str, Any]], base: str, paths: Sequence[str]) -> int:
    """Visit these pages in every way, and print a line for each. Returns the number of faults."""
    faults = 0
    for path in paths:
        for width in WIDTHS:
            for scheme in SCHEMES:
                row = open_page(base + path, width, scheme)
                wrong = [*row["violations"], *row["errors"]]
                wrong += [f"{row['bytes']:,} bytes"] if row["bytes"] > MOST_BYTES else []
                wrong += [f"{row['wider_px']} pixels wider than the window"] if row["wider_px"] > 0 else []
                print(f"{path:<40.40} {width:>5} {scheme:<6}{row['bytes']:>9,} bytes  {row['passed']:>3} rules passed")
                for line in wrong:
                    print(f"    {line}")
                faults += len(wrong)
    return faults


def pages(base: str) -> list[str]:
    """One page of each kind that a board has."""
    with urllib.request.urlopen(f"{base}/api/v1/leaderboard?limit=1") as answer:  # noqa: S310 - our own board
        people = json.load(answer)["people"]
    return ["/", "/?q=nobody", "/?by=teams", f"/c/{people[0]['id']}", "/c/nobody", "/nowhere"]


def main() -> None:
    """Print what was found."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("chromium is not on PATH; install it, for example with: apt-get install chromium")
    try:
        playwright = importlib.import_module("playwright.sync_api")
        axe = Path(importlib.import_module("axe_core_python").__file__ or "").with_name("axe.min.js").read_text()
    except ImportError as error:
        sys.exit(f"{error.name} is not installed: pip install playwright axe-core-python, in your own environment")
    with served() as board, served_index(shown_index()) as index, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        open_page = partial(visit, browser, axe)
        faults = checked(open_page, board.rstrip("/"), pages(board.rstrip("/")))
        faults += checked(open_page, index, INDEX_PAGES)
        browser.close()
    print(f"{faults} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
