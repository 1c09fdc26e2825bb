"""Sections of docs/cli.md, for tests that compare the documentation of a command with its behavior."""

from __future__ import annotations

import re
from pathlib import Path

DOC = (Path(__file__).parents[1] / "docs" / "cli.md").read_text()


def section(name: str) -> str:
    """The text below a command's heading."""
    return DOC.split(f"\n## {name}\n")[1].split("\n## ")[0]


def json_keys(name: str) -> set[str]:
    """The keys of a command's JSON object, as documented."""
    listed = section(name).partition("JSON keys:")[2]
    return set(re.findall(r"`([a-z0-9_]+)`", listed))
