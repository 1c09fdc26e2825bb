"""A copy of the checkout under test for builds, which would leave files in the tree."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.unit.house.source_tree import ROOT


def copy_checkout(target: Path, *folders: str) -> None:
    """Copy every file git knows or would add, links as links; only those under `folders` if any are named."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in listed.stdout.splitlines():
        path, copy = ROOT / name, target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            copy.symlink_to(path.readlink())
        elif path.is_file():
            copy.write_bytes(path.read_bytes())
