"""The documentation site builds without a warning: no broken link, no page outside the navigation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.house.source_tree import ROOT


def test_docs_site_builds_strictly(tmp_path: Path) -> None:
    site = tmp_path / "site"
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (site / "index.html").exists()
    assert (site / "images" / "join.svg").exists()
