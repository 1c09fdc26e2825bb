"""A package of somebody else's on the path, as pip would have installed it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest


def install_package(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    modules: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
) -> None:
    """Put `modules` (name to source) with `entry_points` (group to name to `module:attribute`) on the import path."""
    info = folder / f"{next(iter(modules))}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {next(iter(modules))}\nVersion: 1.0\n")
    sections = [
        "\n".join([f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())])
        for group, entries in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(sections) + "\n")
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(folder))
