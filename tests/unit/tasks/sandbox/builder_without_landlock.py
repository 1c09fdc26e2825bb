"""Builder module whose fork server finds a kernel without Landlock. Building a scorer leaves no doubt: it fails."""

from __future__ import annotations

from pathlib import Path

from p2prl.confinement import linux

linux.landlock_version = lambda: 0


def build_scorer(spec: str, code: Path | None) -> object:
    """Raises: whoever gets here has imported third-party code."""
    raise ValueError("imported")


def runs_third_party_code(spec: str) -> bool:
    """By the name."""
    return spec == "third party"
