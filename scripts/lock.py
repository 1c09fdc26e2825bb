"""Write a lock file: the digests of the files that pip's resolver chose, for `pip install --require-hashes`.

`make lock` asks pip for plans (`pip install --dry-run --report`). A pin that stays keeps the digests that the lock has.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

HEAD = (
    "# Digests of the files that were tested on Linux x86-64 and CPython 3.11; other systems take other files.\n"
    "# pip install --require-hashes --no-deps -r {name}. Written by `make lock`.\n"
)

UNUSED = frozenset({"torchaudio", "torchcodec", "torchvision"})
"""vLLM asks for them and samples text without; PyPI's builds need CUDA, and do not load beside torch for CPUs."""


OF_THE_MACHINE = frozenset({"torch"})
"""Pinned without a digest: the build (for a CPU, for CUDA, for ROCm) depends on the machine, and pip would take one$
with a known digest over the one that the machine's own index prefers."""


def lock_text(title: str, plan: dict[str, Any], old: str, without: frozenset[str]) -> str:
    """The text of the lock `title` for a report of pip's. `old` is its text so far; pins in `without` are left out."""
    known = digests(old)
    lines = [HEAD.format(name=title)]
    for item in sorted(plan["install"], key=lambda item: _canonical(item["metadata"]["name"])):
        archive = item["download_info"].get("archive_info")
        if archive is None:
            continue  # the checkout itself
        name, public = _canonical(item["metadata"]["name"]), item["metadata"]["version"].partition("+")[0]
        pin = f"{name}=={public}"
        if pin not in without and name not in UNUSED | OF_THE_MACHINE:
            found = known.get(pin, set()) | {archive["hashes"]["sha256"]}
            lines.append(" ".join([pin, *(f"--hash=sha256:{digest}" for digest in sorted(found))]) + "\n")
    return "".join(lines)


def digests(lock: str) -> dict[str, set[str]]:
    """SHA-256 of each pin's files, from the text of a lock."""
    pins = (line.split() for line in lock.splitlines() if line and not line.startswith("#"))
    return {pin: {digest.removeprefix("--hash=sha256:") for digest in found} for pin, *found in pins}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(lock: str, plan: str, *others: str) -> None:
    """Write `lock` from the report `plan`, without what the locks `others` hold."""
    path = Path(lock)
    taken = frozenset(pin for other in others for pin in digests(Path(other).read_text()))
    old = path.read_text() if path.exists() else ""
    path.write_text(lock_text(path.name, json.loads(Path(plan).read_text()), old, taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
