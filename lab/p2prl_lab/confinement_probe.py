"""Probe confinement from inside worker, scorer, tokenizer and network process: `python -m p2prl_lab.confinement_probe`.

Prints one JSON row for each probe (process, probe, refused, by) and a last one with their number. With `--bombs`, also
sets off the hostile tokenizers of `p2prl_lab.testing.tokenizer_bombs`, with the checks of their rules and without:
seconds of processor time, peak memory.
Exit status 1 when a probe was granted, or a bomb cost more than 2 s or 512 MB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from p2prl.errors import RemoteProtocolError
from p2prl.models.tokenizer.confined import ConfinedTokenizer
from p2prl_lab.testing.confinement_probes import findings
from p2prl_lab.testing.tokenizer_bombs import VOCABULARY, Bomb, bombs, unchecked_program

MOST_S, MOST_MB = 2.0, 512.0
"""What a bomb may cost."""

_MEASURED = (
    "import json, resource, sys\n"
    "from p2prl_lab.confinement_probe import set_off\n"
    "reason = set_off(int(sys.argv[1]), sys.argv[2] == 'checked')\n"
    "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    "print(json.dumps([reason, used.ru_utime + used.ru_stime, used.ru_maxrss]))"
)
"""One bomb in a process of its own, whose only child is the tokenizer's."""


def set_off(number: int, checked: bool) -> str:
    """Why a bomb was refused; empty if it went off nowhere."""
    bomb = bombs()[number]
    launch = None if checked else unchecked_program().start
    try:
        with ConfinedTokenizer(bomb.rules, {}, VOCABULARY, launch=launch) as tokenizer:
            tokenizer.encode(bomb.text)
            tokenizer.decode(bomb.token_ids)
    except RemoteProtocolError as error:
        return str(error)
    return ""


def bomb_rows() -> Iterator[dict[str, Any]]:
    """What each bomb cost."""
    for checks in ("checked", "unchecked"):
        for number, bomb in enumerate(bombs()):
            yield _bomb_row(number, bomb, checks)


def _bomb_row(number: int, bomb: Bomb, checks: str) -> dict[str, Any]:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, str(number), checks], stdout=subprocess.PIPE, env=os.environ, check=True
    )
    reason, seconds, peak = json.loads(done.stdout)
    return {
        "process": "tokenizer",
        "probe": f"bomb: {bomb.name}",
        "rules": checks,
        "refused": bool(reason),
        "by": reason,
        "cpu_s": round(seconds, 2),
        "wall_s": round(time.monotonic() - started, 2),
        "peak_mb": round(peak / 1024, 1),
    }


def main() -> int:
    """Print the rows; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bombs", action="store_true", help="set off the hostile tokenizers too, about two minutes")
    arguments = parser.parse_args()
    faults = tried = 0
    for finding in findings():
        print(json.dumps(asdict(finding)), flush=True)
        tried += 1
        faults += not finding.refused
    print(json.dumps({"probes": tried, "refused": tried - faults, "granted": faults}), flush=True)
    for row in bomb_rows() if arguments.bombs else ():
        print(json.dumps(row), flush=True)
        faults += row["cpu_s"] > MOST_S or row["peak_mb"] > MOST_MB
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
